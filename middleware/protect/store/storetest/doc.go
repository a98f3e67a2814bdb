// Package storetest tests stores: whatever implements [store.Inbox], [store.TxInbox] or
// [store.Values] has to pass it.
//
//	func TestInbox(t *testing.T) {
//		storetest.Inbox(t, func(t *testing.T) store.Inbox { return open(t) })
//	}
//
// The function that opens a store is called several times in a test. Each call plays another
// process: what they keep, they share. The names of handlers and values are random, so that a
// server needs no cleaning between tests.
package storetest
