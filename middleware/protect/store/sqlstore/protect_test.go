package sqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wmmessage "github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/amqpretry/watermill-retry/middleware/protect"
)

// Each message is delivered several times, to two instances. Handlers fail after their effect, and
// connections are killed. Each message has its effect once.
func TestTransactionalHandlers(t *testing.T) { onEach(t, testTransactionalHandlers) }

func testTransactionalHandlers(t *testing.T, on server) {
	t.Parallel()
	db, _, inbox := on.all(t)
	ctx, effects := t.Context(), table(t, db, "id varchar(100) NOT NULL")

	var failures, killed atomic.Int32
	handler := func(msg *wmmessage.Message) ([]*wmmessage.Message, error) {
		tx, ctx := protect.TxFromContext(msg.Context()), msg.Context()
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+effects+" VALUES ('"+msg.UUID+"')"); err != nil {
			return nil, err
		}
		switch rand.IntN(5) {
		case 0:
			failures.Add(1)
			return nil, errors.New("it fails")
		case 1: // the server ends the connection before the commit
			killed.Add(1)
			_, err := tx.ExecContext(ctx, on.killed)
			return nil, ignored(err)
		}
		return nil, nil
	}
	const messages, copies = 30, 4
	var wg sync.WaitGroup
	for range 2 {
		transactional, err := protect.NewTransactional(protect.TransactionalConfig{
			DB: db, Inbox: inbox, Postpone: 10 * time.Millisecond,
		})
		require.NoError(t, err)
		guarded := transactional.Middleware(handler)
		for range copies / 2 {
			wg.Go(func() {
				for m := range messages {
					for ctx.Err() == nil {
						msg := wmmessage.NewMessage(fmt.Sprint("order-", m), nil)
						msg.SetContext(ctx)
						if _, err := guarded(msg); err == nil {
							break
						}
					}
				}
			})
		}
	}
	wg.Wait()
	var all, different int
	counted := db.QueryRowContext(ctx, "SELECT count(*), count(DISTINCT id) FROM "+effects)
	require.NoError(t, counted.Scan(&all, &different))
	assert.Equal(t, messages, all)
	assert.Equal(t, messages, different)
	assert.Positive(t, failures.Load())
	assert.Positive(t, killed.Load())
}

// ignored is an error that the handler does not notice.
func ignored(error) error { return nil }

// Two instances with one limit make as many calls together as one.
func TestSharedRateLimit(t *testing.T) { onEach(t, testSharedRateLimit) }

func testSharedRateLimit(t *testing.T, on server) {
	t.Parallel()
	_, _, values := on.all(t)
	const limit, calls = 50, 100
	var left atomic.Int32
	left.Store(calls)
	var wg sync.WaitGroup
	began := time.Now()
	for range 2 {
		l, err := protect.NewRateLimit(protect.RateLimitConfig{
			Limit: rate.Limit(limit), Burst: 1, Shared: values, OnError: func(err error) { assert.NoError(t, err) },
		})
		require.NoError(t, err)
		guarded := l.Middleware(func(*wmmessage.Message) ([]*wmmessage.Message, error) { return nil, nil })
		for range 2 {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					msg := wmmessage.NewMessage("a", nil)
					msg.SetContext(t.Context())
					_, err := guarded(msg)
					assert.NoError(t, err)
				}
			})
		}
	}
	wg.Wait()
	took := time.Since(began)
	t.Logf("%.1f calls a second, with a limit of %d", calls/took.Seconds(), limit)
	assert.GreaterOrEqual(t, took, (calls-1)*time.Second/limit-50*time.Millisecond)
}

// Transactions of handlers meet: each handler is called again in place, and every message has its
// effect without a failed attempt.
func TestTransactionalConflicts(t *testing.T) {
	onEach(t, func(t *testing.T, on server) {
		for name, db := range on.drivers(t, on.uri) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				testTransactionalConflicts(t, on, db)
			})
		}
	})
}

func testTransactionalConflicts(t *testing.T, on server, db *sql.DB) {
	inbox := on.store(t, db, tables(t, db))
	ctx, counters := t.Context(), table(t, db, "id int PRIMARY KEY, n int NOT NULL")
	run(t, db, "INSERT INTO "+counters+" VALUES (0, 0), (1, 0)")
	transactional, err := protect.NewTransactional(protect.TransactionalConfig{
		DB: db, Inbox: inbox, Postpone: 20 * time.Millisecond,
		TxOptions: &sql.TxOptions{Isolation: on.isolation},
	})
	require.NoError(t, err)
	var calls, conflicts atomic.Int32
	guarded := transactional.Middleware(func(msg *wmmessage.Message) ([]*wmmessage.Message, error) {
		err := on.meet(msg.Context(), protect.TxFromContext(msg.Context()), counters, int(calls.Add(1)))
		if err != nil && inbox.IsConflict(fmt.Errorf("cannot count: %w", err)) {
			conflicts.Add(1)
		}
		return nil, err
	})
	const messages = 40
	var wg sync.WaitGroup
	for m := range messages {
		wg.Go(func() {
			msg := wmmessage.NewMessage(fmt.Sprint("order-", m), nil)
			msg.SetContext(ctx)
			_, err := guarded(msg)
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	var a, b int
	require.NoError(t, db.QueryRowContext(ctx, "SELECT min(n), max(n) FROM "+counters).Scan(&a, &b))
	assert.Equal(t, []int{messages, messages}, []int{a, b})
	assert.Positive(t, conflicts.Load())
	t.Logf("%d calls for %d messages", calls.Load(), messages)
}
