// Package store says what the middlewares of package protect keep outside of their process, so that
// all processes of a service share it: which messages were handled ([Inbox], [TxInbox]), and the
// state of rate limits and breakers ([Values]).
//
// [Memory] keeps it in one process. The packages below this one keep it in a server: redisstore
// and sqlstore. Package storetest is what every store has
// to pass.
package store
