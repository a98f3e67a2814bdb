package protect_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
	"github.com/amqpretry/watermill-retry/retry"
)

// These tests look at what the middleware does with transactions. What a server does with them is
// tested with the stores, on real ones.

// database is a driver whose only statements are writes: what a transaction has written is there
// when it is committed.
type database struct {
	mu        sync.Mutex
	written   map[string]int
	locks     map[string]*dbTx
	down      error // of Begin
	denied    error // of the claim
	lostReply bool  // of a commit that succeeds
	hangs     bool  // Begin
	conflicts int   // commits that meet others
	rolled    int
}

func (d *database) Connect(context.Context) (driver.Conn, error) { return &dbConn{d: d}, nil }
func (d *database) Driver() driver.Driver                        { return nil }

type dbConn struct {
	d  *database
	tx *dbTx
}

func (c *dbConn) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (c *dbConn) Close() error                        { return nil }
func (c *dbConn) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }

func (c *dbConn) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	c.d.mu.Lock()
	down, hangs := c.d.down, c.d.hangs
	c.d.mu.Unlock()
	if hangs {
		<-ctx.Done()

		return nil, ctx.Err()
	}
	if down != nil {
		return nil, down
	}
	c.tx = &dbTx{d: c.d}

	return c.tx, nil
}

func (c *dbConn) ExecContext(ctx context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if strings.HasPrefix(query, "claim") {
		c.d.mu.Lock()
		defer c.d.mu.Unlock()
		if c.d.denied != nil {
			return nil, c.d.denied
		}
		if c.d.written[query] > 0 {
			return nil, errDone
		}
		if owner := c.d.locks[query]; owner != nil && owner != c.tx {
			return nil, errLocked
		}
		c.d.locks[query] = c.tx
	}
	c.tx.writes = append(c.tx.writes, query)

	return driver.ResultNoRows, nil
}

var errDone, errLocked, errConflict = errors.New("done"), errors.New("locked"), errors.New("serialization failure")

type dbTx struct {
	d      *database
	writes []string
}

func (t *dbTx) Commit() error {
	t.d.mu.Lock()
	defer t.d.mu.Unlock()
	if t.d.conflicts > 0 {
		t.d.conflicts--
		t.end()

		return errConflict
	}
	for _, w := range t.writes {
		t.d.written[w]++
	}
	t.end()
	if t.d.lostReply {
		t.d.lostReply = false

		return errors.New("connection reset by peer")
	}

	return nil
}

func (t *dbTx) Rollback() error {
	t.d.mu.Lock()
	defer t.d.mu.Unlock()
	t.d.rolled++
	t.end()

	return nil
}

func (t *dbTx) end() {
	for key, owner := range t.d.locks {
		if owner == t {
			delete(t.d.locks, key)
		}
	}
}

// BeginTx makes a TxInbox of it, which does not wait for others.
func (d *database) BeginTx(ctx context.Context, tx *sql.Tx, handler, key string) (store.State, error) {
	_, err := tx.ExecContext(ctx, "claim "+handler+" "+key)
	switch {
	case errors.Is(err, errDone):
		return store.Done, nil
	case errors.Is(err, errLocked):
		return store.InFlight, nil
	}

	return store.New, err
}

// IsConflict makes a store.ConflictTeller of it.
func (d *database) IsConflict(err error) bool { return errors.Is(err, errConflict) }

func (d *database) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

func (d *database) effects() int {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.written["effect"]
}

func newDatabase(t *testing.T) (*database, *sql.DB) {
	t.Helper()
	d := &database{written: map[string]int{}, locks: map[string]*dbTx{}}
	db := sql.OpenDB(d)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })

	return d, db
}

func transactional(t *testing.T, d *database, db *sql.DB, h message.HandlerFunc,
	change ...func(*protect.TransactionalConfig)) message.HandlerFunc {
	t.Helper()
	c := protect.TransactionalConfig{DB: db, Inbox: d}
	for _, f := range change {
		f(&c)
	}
	tr, err := protect.NewTransactional(c)
	require.NoError(t, err)

	return tr.Middleware(h)
}

// effect is what a handler does.
func effect(msg *message.Message) error {
	ctx := msg.Context()
	_, err := protect.TxFromContext(ctx).ExecContext(ctx, "effect")

	return err
}

func effective(msg *message.Message) ([]*message.Message, error) { return nil, effect(msg) }

// A transaction that met another one runs again at once, with the message as it was; in the end the
// message is postponed. Neither uses up an attempt.
func TestTransactionalConflicts(t *testing.T) {
	for conflicts, calls := range map[int]int{0: 1, 1: 2, 4: 5, 5: 5, 99: 5} {
		d, db := newDatabase(t)
		d.conflicts = conflicts
		var seen []string
		handler := transactional(t, d, db, func(msg *message.Message) ([]*message.Message, error) {
			seen = append(seen, string(msg.Payload)+msg.Metadata.Get("key"))
			copy(msg.Payload, "XX")
			msg.Metadata.Set("key", "changed")

			return effective(msg)
		})
		msg := fresh()
		msg.Payload, msg.Metadata = message.Payload("ab"), message.Metadata{"key": "value"}
		_, err := handler(msg)
		assert.Len(t, seen, calls)
		for _, s := range seen {
			assert.Equal(t, "abvalue", s)
		}
		if calls > conflicts {
			require.NoError(t, err)
			assert.Equal(t, 1, d.effects())
		} else {
			require.ErrorIs(t, err, retry.ErrPostponed)
			require.ErrorIs(t, err, errConflict)
			assert.Zero(t, d.effects())
		}
	}
}

// Who says what an error means is believed.
func TestTransactionalConflictsThatAreMarked(t *testing.T) {
	d, db := newDatabase(t)
	for _, mark := range []func(error) error{
		retry.Permanent, retry.Drop, retry.Transient,
		func(err error) error { return retry.RetryAfter(time.Hour, err) },
	} {
		calls := 0
		_, err := transactional(t, d, db, func(*message.Message) ([]*message.Message, error) {
			calls++
			return nil, mark(errConflict)
		})(fresh())
		require.ErrorIs(t, err, errConflict)
		assert.NotErrorIs(t, err, retry.ErrPostponed)
		assert.Equal(t, 1, calls)
	}
}

func TestTransactionalOnce(t *testing.T) {
	d, db := newDatabase(t)
	guarded := transactional(t, d, db, effective)
	for range 3 {
		msg := fresh()
		require.NoError(t, routed(guarded, msg))
		assert.Nil(t, protect.TxFromContext(msg.Context()), "the transaction is the handler's only")
	}
	assert.Equal(t, 1, d.effects())
	require.NoError(t, routed(guarded, replay()))
	assert.Equal(t, 1, d.effects())
	require.NoError(t, routed(guarded, newMessage(newDelivery(twoRetries), "other")))
	require.NoError(t, routed(guarded, message.NewMessage("uuid of other", nil)))
	require.NoError(t, routed(guarded, message.NewMessage("uuid of other", nil)))
	assert.Equal(t, 3, d.effects(), "messages of others have a handler of their own")
	assert.Nil(t, protect.TxFromContext(t.Context()))
}

// Whatever ends a call without a success takes its effect away, and the next call comes through.
func TestTransactionalRollback(t *testing.T) {
	for name, end := range map[string]func(*message.Message) error{
		"an error":  func(*message.Message) error { return errBoom },
		"a panic":   func(*message.Message) error { panic("boom") },
		"a Goexit":  func(*message.Message) error { runtime.Goexit(); return nil },
		"postponed": func(*message.Message) error { return retry.Postpone(time.Second) },
		"rolled back by the handler": func(msg *message.Message) error {
			return protect.TxFromContext(msg.Context()).Rollback()
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, db := newDatabase(t)
			db.SetMaxOpenConns(1) // so nothing is left open
			fail := true
			guarded := transactional(t, d, db, func(msg *message.Message) ([]*message.Message, error) {
				if err := effect(msg); err != nil || !fail {
					return nil, err
				}

				return nil, end(msg)
			})
			msg := fresh()
			before := msg.Context()
			endsGoroutine(func() {
				defer func() { _ = recover() }()
				err := call(guarded, msg)
				assert.Error(t, err)
				assert.Equal(t, name == "rolled back by the handler", errors.Is(err, protect.ErrTransactionEnded))
			})
			assert.Equal(t, before, msg.Context())
			assert.Zero(t, d.effects())
			assert.Equal(t, 1, d.rolled)
			fail = false
			require.NoError(t, call(guarded, fresh()))
			assert.Equal(t, 1, d.effects())
		})
	}
}

// A handler that commits by itself has its effect once all the same, and is told.
func TestTransactionalCommittedByHandler(t *testing.T) {
	d, db := newDatabase(t)
	guarded := transactional(t, d, db, func(msg *message.Message) ([]*message.Message, error) {
		if err := effect(msg); err != nil {
			return nil, err
		}

		return nil, protect.TxFromContext(msg.Context()).Commit()
	})
	require.ErrorIs(t, call(guarded, fresh()), protect.ErrTransactionEnded)
	require.NoError(t, call(guarded, fresh()))
	assert.Equal(t, 1, d.effects())
}

// A commit whose answer is lost is a failure, and the retry learns that it was none.
func TestTransactionalCommitUnknown(t *testing.T) {
	d, db := newDatabase(t)
	guarded := transactional(t, d, db, effective)
	d.lostReply = true
	err := call(guarded, fresh())
	var e *protect.StoreError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, "commit", e.Op)
	require.NoError(t, call(guarded, fresh()))
	assert.Equal(t, 1, d.effects())
}

func TestTransactionalInFlight(t *testing.T) {
	d, db := newDatabase(t)
	inside, end, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	slow := transactional(t, d, db, func(msg *message.Message) ([]*message.Message, error) {
		close(inside)
		<-end

		return nil, effect(msg)
	})
	go func() { ended <- call(slow, fresh()) }()
	<-inside
	guarded := transactional(t, d, db, effective, func(c *protect.TransactionalConfig) { c.Postpone = 7 * time.Second })
	err := call(guarded, fresh())
	require.ErrorIs(t, err, protect.ErrInFlight)
	assert.Equal(t, 7*time.Second, postponedFor(t, err))

	// Where it cannot be postponed, it waits in place, as long as its context lasts.
	impatient := newMessage(newDelivery(noRetries), "payload")
	ctx, cancel := context.WithTimeout(impatient.Context(), 10*time.Millisecond)
	defer cancel()
	impatient.SetContext(ctx)
	require.ErrorIs(t, call(guarded, impatient), context.DeadlineExceeded)
	waits := transactional(t, d, db, effective, func(c *protect.TransactionalConfig) { c.Postpone = time.Millisecond })
	go func() { ended <- call(waits, newMessage(newDelivery(noRetries), "payload")) }()
	close(end)
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
	assert.Equal(t, 1, d.effects())
}

// A database that does not answer costs no attempt, and the handler is not called.
func TestTransactionalDown(t *testing.T) {
	d, db := newDatabase(t)
	h := &handler{}
	guarded := transactional(t, d, db, h.handle, func(c *protect.TransactionalConfig) {
		c.Timeout = 10 * time.Millisecond
	})
	assertPostponed := func() {
		t.Helper()
		err := call(guarded, fresh())
		assert.Equal(t, time.Second, postponedFor(t, err))
		var e *protect.StoreError
		require.ErrorAs(t, err, &e)
		assert.Equal(t, "begin a transaction", e.Op)
	}
	d.set(func() { d.down = errDown })
	assertPostponed()
	d.set(func() { d.down, d.hangs = nil, true })
	assertPostponed()
	d.set(func() { d.hangs = false })

	db.SetMaxOpenConns(1)
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	assertPostponed() // no connection is free
	require.NoError(t, conn.Close())
	assert.Zero(t, h.calls)
	require.NoError(t, call(guarded, fresh()))
	assert.Equal(t, 1, h.calls)
}

// An error of the database that lasts is reported: else nobody sees more than messages that are
// postponed.
func TestTransactionalReports(t *testing.T) {
	for op, fail := range map[string]func(*database){
		"begin a transaction": func(d *database) { d.down = errDown },
		"claim":               func(d *database) { d.denied = errors.New("permission denied") },
		"commit":              func(d *database) { d.lostReply = true },
	} {
		t.Run(op, func(t *testing.T) {
			d, db := newDatabase(t)
			o, logger := &told{}, &counting{}
			guarded := transactional(t, d, db, effective, func(c *protect.TransactionalConfig) {
				c.OnError, c.Logger = o.onError, logger
			})
			for range 3 {
				d.set(func() { fail(d) })
				require.Error(t, call(guarded, newMessage(newDelivery(twoRetries), rand.Text())))
			}
			assert.Equal(t, []string{op, op, op}, o.ops(t))
			assert.Equal(t, 1, logger.count(), "a database that is down does not fill the log")
		})
	}
}

// Other errors are not reported: their messages carry them.
func TestTransactionalDoesNotReport(t *testing.T) {
	d, db := newDatabase(t)
	o := &told{}
	tell := func(c *protect.TransactionalConfig) { c.OnError = o.onError }
	ended := func(change func(*message.Message)) message.HandlerFunc {
		return transactional(t, d, db, func(msg *message.Message) ([]*message.Message, error) {
			change(msg)

			return nil, nil
		}, tell)
	}
	msg, cancel := cancellable(fresh())
	require.ErrorIs(t, call(ended(func(*message.Message) { cancel() }), msg), context.Canceled)
	require.ErrorIs(t, call(ended(func(*message.Message) {}), msg), context.Canceled)
	commits := ended(func(msg *message.Message) {
		assert.NoError(t, protect.TxFromContext(msg.Context()).Commit())
	})
	require.ErrorIs(t, call(commits, newMessage(newDelivery(twoRetries), "other")), protect.ErrTransactionEnded)
	d.set(func() { d.locks["claim /orders/ uuid of payload"] = &dbTx{} })
	require.ErrorIs(t, call(ended(func(*message.Message) {}), fresh()), protect.ErrInFlight)
	assert.Empty(t, o.ops(t))
}

// The timeout is for the claim, not for the handler.
func TestTransactionalLongHandler(t *testing.T) {
	d, db := newDatabase(t)
	guarded := transactional(t, d, db, func(msg *message.Message) ([]*message.Message, error) {
		wait(50 * time.Millisecond)

		return nil, effect(msg)
	}, func(c *protect.TransactionalConfig) { c.Timeout = 20 * time.Millisecond })
	require.NoError(t, call(guarded, fresh()))
	assert.Equal(t, 1, d.effects())
}

// A context that ends takes everything back, be it before the claim or before the commit.
func TestTransactionalEndedContexts(t *testing.T) {
	d, db := newDatabase(t)
	calls := 0
	var cancel context.CancelFunc
	guarded := transactional(t, d, db, func(msg *message.Message) ([]*message.Message, error) {
		calls++
		err := effect(msg)
		cancel()

		return nil, err
	})
	for _, before := range []bool{true, false} {
		var msg *message.Message
		if msg, cancel = cancellable(fresh()); before {
			cancel()
		}
		require.ErrorIs(t, call(guarded, msg), context.Canceled)
	}
	assert.Equal(t, 1, calls)
	assert.Zero(t, d.effects())
	await.Until(t, func() bool { return call(transactional(t, d, db, effective), fresh()) == nil })
	assert.Equal(t, 1, d.effects())
}

// A handler that is wrapped twice has one transaction, and is not shut out by its own claim.
// Deliveries exclude each other, also one that has the context of another.
func TestTransactionalTwice(t *testing.T) {
	d, db := newDatabase(t)
	var guarded message.HandlerFunc
	output := message.NewMessage("output", nil)
	tr, err := protect.NewTransactional(protect.TransactionalConfig{DB: db, Inbox: d,
		Outbox: func(ctx context.Context, tx *sql.Tx, produced []*message.Message) error {
			assert.Equal(t, []*message.Message{output}, produced)
			_, err := tx.ExecContext(ctx, "output")

			return err
		}})
	require.NoError(t, err)
	inside := false
	guarded = tr.Middleware(tr.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		if inside {
			return nil, errors.New("it was handled at the same time")
		}
		inside = true
		defer func() { inside = false }()
		require.ErrorIs(t, call(guarded, fresh()), protect.ErrInFlight)
		inherits := fresh()
		inherits.SetContext(msg.Context())
		require.ErrorIs(t, call(guarded, inherits), protect.ErrInFlight)

		return []*message.Message{output}, effect(msg)
	}))
	for range 2 {
		require.NoError(t, routed(guarded, fresh()))
	}
	assert.Equal(t, 1, d.effects())
	assert.Equal(t, 1, d.written["output"])
}

func TestTransactionalOutputs(t *testing.T) {
	d, db := newDatabase(t)
	output := message.NewMessage("output", nil)
	h := func(msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{output}, effect(msg)
	}
	produced, err := transactional(t, d, db, h)(fresh())
	require.ErrorIs(t, err, protect.ErrOutputs)
	assert.Empty(t, produced)
	assert.Zero(t, d.effects())

	fail := true
	guarded := transactional(t, d, db, h, func(c *protect.TransactionalConfig) {
		c.Outbox = func(ctx context.Context, tx *sql.Tx, produced []*message.Message) error {
			if fail {
				return errBoom
			}
			assert.Equal(t, []*message.Message{output}, produced)
			assert.Equal(t, protect.TxFromContext(ctx), tx)
			_, err := tx.ExecContext(ctx, "output")

			return err
		}
	})
	require.ErrorIs(t, call(guarded, fresh()), errBoom)
	assert.Zero(t, d.effects())
	fail = false
	for range 2 {
		produced, err = guarded(fresh())
		require.NoError(t, err)
		assert.Empty(t, produced, "the router does not publish them again")
	}
	assert.Equal(t, 1, d.effects())
	assert.Equal(t, 1, d.written["output"])
}

// A message without a key has its transaction, and no claim. A key that cannot be made begins
// nothing.
func TestTransactionalKeys(t *testing.T) {
	d, db := newDatabase(t)
	guarded := transactional(t, d, db, effective)
	for range 2 {
		require.NoError(t, call(guarded, message.NewMessage("", nil)))
	}
	assert.Equal(t, 2, d.effects())
	guarded = transactional(t, d, db, effective, func(c *protect.TransactionalConfig) {
		c.KeyFactory = wmmiddleware.NewMessageHasherFromMetadataField("order_id")
	})
	require.ErrorContains(t, call(guarded, fresh()), "order_id")
	assert.Zero(t, d.rolled)
}

func TestTransactionalConfig(t *testing.T) {
	_, err := protect.NewTransactional(protect.TransactionalConfig{Postpone: -1, Timeout: -1})
	assert.Equal(t, []string{"TransactionalConfig.DB", "TransactionalConfig.Inbox", "TransactionalConfig.Postpone",
		"TransactionalConfig.Timeout"}, fields(t, err))

	var none *database
	_, err = protect.NewTransactional(protect.TransactionalConfig{DB: &sql.DB{}, Inbox: none})
	require.EqualError(t, err, "TransactionalConfig.Inbox: a nil pointer: must be an inbox in the same database, "+
		"got (*protect_test.database)(nil)")
}

// brokenTxInbox returns what no store may.
type brokenTxInbox struct{}

func (brokenTxInbox) BeginTx(context.Context, *sql.Tx, string, string) (store.State, error) {
	return 0, nil
}

// A store that breaks its contract is named.
func TestTransactionalBrokenInbox(t *testing.T) {
	d, db := newDatabase(t)
	h, o := &handler{}, &told{}
	err := call(transactional(t, d, db, h.handle, func(c *protect.TransactionalConfig) {
		c.Inbox, c.OnError = brokenTxInbox{}, o.onError
	}), fresh())
	require.ErrorContains(t, err,
		"the store protect_test.brokenTxInbox returned the state 0: neither New, InFlight nor Done")
	assert.Equal(t, time.Second, postponedFor(t, err))
	assert.Equal(t, []string{"claim"}, o.ops(t))
	assert.Zero(t, h.calls)
}
