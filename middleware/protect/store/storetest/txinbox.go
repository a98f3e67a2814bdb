package storetest

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// TxInbox tests an inbox whose claims are part of transactions of the database db.
func TxInbox(t *testing.T, db *sql.DB, open func(t *testing.T) store.TxInbox) {
	for name, test := range map[string]func(*testing.T, txInboxes){
		"committed":           testTxCommitted,
		"rolled back":         testTxRolledBack,
		"all or nothing":      testTxAllOrNothing,
		"handlers":            testTxHandlers,
		"keys":                testTxKeys,
		"waits for a commit":  func(t *testing.T, in txInboxes) { testTxWaits(t, in, true) },
		"waits for rollback":  func(t *testing.T, in txInboxes) { testTxWaits(t, in, false) },
		"waits until the end": testTxWaitEnds,
		"ended contexts":      testTxEndedContexts,
		"ended transactions":  testTxEndedTransaction,
		"one of many":         testTxOneOfMany,
	} {
		t.Run(name, func(t *testing.T) { test(t, txInboxes{db, [2]store.TxInbox{open(t), open(t)}}) })
	}
}

// txInboxes are two processes with one database.
type txInboxes struct {
	db *sql.DB
	in [2]store.TxInbox
}

// tx begins a transaction, which is rolled back at the latest with the test.
func (i txInboxes) tx(t require.TestingT, ctx context.Context) *sql.Tx { //nolint:revive // the test comes first
	tx, err := i.db.BeginTx(ctx, nil)
	require.NoError(t, err)
	if c, ok := t.(interface{ Cleanup(f func()) }); ok {
		c.Cleanup(func() { _ = tx.Rollback() })
	}

	return tx
}

// assertTxState looks at a message without keeping it.
func (i txInboxes) assertTxState(t *testing.T, want store.State, inbox int, handler, key string, why ...any) {
	t.Helper()
	tx := i.tx(t, t.Context())
	got, err := i.in[inbox].BeginTx(t.Context(), tx, handler, key)
	require.NoError(t, err)
	assert.Equal(t, want, got, why...)
	require.NoError(t, tx.Rollback())
}

// claim claims a message that must be New.
func (i txInboxes) claim(t *testing.T, inbox int, tx *sql.Tx, handler, key string) {
	t.Helper()
	state, err := i.in[inbox].BeginTx(t.Context(), tx, handler, key)
	require.NoError(t, err)
	require.Equal(t, store.New, state, "%.40q", key)
}

func testTxCommitted(t *testing.T, in txInboxes) {
	handler := name(t)
	tx := in.tx(t, t.Context())
	in.claim(t, 0, tx, handler, "key")
	require.NoError(t, tx.Commit())
	in.assertTxState(t, store.Done, 0, handler, "key")
	in.assertTxState(t, store.Done, 1, handler, "key")
}

func testTxRolledBack(t *testing.T, in txInboxes) {
	handler := name(t)
	for inbox := range in.in {
		tx := in.tx(t, t.Context())
		in.claim(t, inbox, tx, handler, "key")
		require.NoError(t, tx.Rollback())
	}
	in.assertTxState(t, store.New, 1, handler, "key")
}

// What a transaction does besides is committed and rolled back with its claim.
func testTxAllOrNothing(t *testing.T, in txInboxes) {
	for _, commit := range []bool{false, true} {
		handler := name(t)
		tx := in.tx(t, t.Context())
		in.claim(t, 0, tx, handler, "a")
		in.claim(t, 0, tx, handler, "b")
		want := store.New
		if commit {
			require.NoError(t, tx.Commit())
			want = store.Done
		} else {
			require.NoError(t, tx.Rollback())
		}
		in.assertTxState(t, want, 1, handler, "a")
		in.assertTxState(t, want, 1, handler, "b")
	}
}

func testTxHandlers(t *testing.T, in txInboxes) {
	base := name(t)
	tx := in.tx(t, t.Context())
	for _, pair := range [][2]string{
		{base, "key"}, {base + "2", "key"}, {base + "k", "ey"}, {base + ":", "key"}, {base, ":key"},
		{base + "\x00", "key"},
		{base, "\x00key"}, {base + " ", "key"}, {base + "K", "ey"},
	} {
		in.claim(t, 0, tx, pair[0], pair[1])
	}
	require.NoError(t, tx.Commit())
}

func testTxKeys(t *testing.T, in txInboxes) {
	handler := name(t)
	tx := in.tx(t, t.Context())
	for _, key := range keys {
		in.claim(t, 0, tx, handler, key)
	}
	require.NoError(t, tx.Commit())
	for _, key := range keys {
		in.assertTxState(t, store.Done, 1, handler, key, "%.40q", key)
	}
}

// Who comes second learns what has become of the first, or that he has to come again.
func testTxWaits(t *testing.T, in txInboxes, commit bool) {
	handler := name(t)
	first := in.tx(t, t.Context())
	in.claim(t, 0, first, handler, "key")

	type answer struct {
		state store.State
		err   error
	}
	answered := make(chan answer, 1)
	second := in.tx(t, t.Context())
	go func() {
		state, err := in.in[1].BeginTx(context.Background(), second, handler, "key")
		answered <- answer{state, err}
	}()
	select {
	case a := <-answered: // it does not wait
		require.NoError(t, a.err)
		require.Equal(t, store.InFlight, a.state)
		answered <- a
	case <-time.After(short):
	}
	end, want := first.Commit, store.Done
	if !commit {
		end, want = first.Rollback, store.New
	}
	require.NoError(t, end())
	a := <-answered
	require.NoError(t, a.err)
	assert.Contains(t, []store.State{want, store.InFlight}, a.state)
	require.NoError(t, second.Rollback())
	in.assertTxState(t, want, 1, handler, "key")
}

// A wait ends with its context, or before.
func testTxWaitEnds(t *testing.T, in txInboxes) {
	handler := name(t)
	first := in.tx(t, t.Context())
	in.claim(t, 0, first, handler, "key")
	second := in.tx(t, t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), short)
	defer cancel()
	began := time.Now()
	state, err := in.in[1].BeginTx(ctx, second, handler, "key")
	assert.Less(t, time.Since(began), soon)
	if err == nil {
		assert.Equal(t, store.InFlight, state)
	}
	_ = second.Rollback() // a driver may have done so, as the context has ended
	require.NoError(t, first.Commit())
	in.assertTxState(t, store.Done, 1, handler, "key")
}

func testTxEndedContexts(t *testing.T, in txInboxes) {
	handler := name(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	tx := in.tx(t, t.Context())
	_, err := in.in[0].BeginTx(ended, tx, handler, "key")
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, tx.Rollback())

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tx = in.tx(t, ctx)
	in.claim(t, 0, tx, handler, "key")
	cancel() // which rolls it back
	require.Error(t, tx.Commit())
	await.Within(t, soon, func() bool {
		tx, err := in.db.BeginTx(t.Context(), nil)
		if err != nil {
			return false
		}
		defer func() { _ = tx.Rollback() }()
		state, err := in.in[1].BeginTx(t.Context(), tx, handler, "key")

		return err == nil && state == store.New
	})
}

// A transaction that has ended takes no claims.
func testTxEndedTransaction(t *testing.T, in txInboxes) {
	handler := name(t)
	tx := in.tx(t, t.Context())
	require.NoError(t, tx.Rollback())
	_, err := in.in[0].BeginTx(t.Context(), tx, handler, "key")
	require.Error(t, err)
	in.assertTxState(t, store.New, 1, handler, "key")
}

func testTxOneOfMany(t *testing.T, in txInboxes) {
	handler := name(t)
	const goroutines, rounds = 8, 5
	for round := range rounds {
		key := string(rune('a' + round))
		var won, committed atomic.Int32
		var start, wg sync.WaitGroup
		start.Add(1)
		for i := range goroutines {
			wg.Go(func() {
				start.Wait()
				for ended := false; !ended; {
					ended = in.attempt(assertive{t}, i, handler, key, &won, &committed)
				}
			})
		}
		start.Done()
		wg.Wait()
		assert.EqualValues(t, 1, committed.Load())
		assert.GreaterOrEqual(t, won.Load(), int32(2), "the first has rolled back")
	}
}

// attempt is what one who handles a message does. The first to do so rolls back. It tells whether
// the message is Done.
func (i txInboxes) attempt(t assertive, n int, handler, key string, won, committed *atomic.Int32) bool {
	ctx := context.Background()
	tx, err := i.db.BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	state, err := i.in[n%2].BeginTx(ctx, tx, handler, key)
	require.NoError(t, err)
	switch {
	case state == store.Done:
		return true
	case state == store.InFlight:
	case won.Add(1) > 1:
		require.NoError(t, tx.Commit())
		committed.Add(1)
	}

	return false
}
