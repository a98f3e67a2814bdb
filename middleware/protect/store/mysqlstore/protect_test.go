package mysqlstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wmmessage "github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/middleware/protect"
)

// Handlers that lock two rows in either order meet in deadlocks: each is called again in place, and
// every message has its effect without a failed attempt.
func TestTransactionalConflicts(t *testing.T) {
	t.Parallel()
	db := connect(t, serverURI(t))
	c := tables(t, db)
	inbox := open(t, db, c)
	ctx, counters := t.Context(), c.Table+"_counters"
	_, err := db.ExecContext(ctx, "CREATE TABLE "+counters+" (id int PRIMARY KEY, n int NOT NULL)")
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = db.ExecContext(context.Background(), "DROP TABLE "+counters) })
	_, err = db.ExecContext(ctx, "INSERT INTO "+counters+" VALUES (0, 0), (1, 0)")
	require.NoError(t, err)
	transactional, err := protect.NewTransactional(protect.TransactionalConfig{
		DB: db, Inbox: inbox, Postpone: 20 * time.Millisecond,
	})
	require.NoError(t, err)
	var calls, conflicts atomic.Int32
	guarded := transactional.Middleware(func(msg *wmmessage.Message) ([]*wmmessage.Message, error) {
		first := int(calls.Add(1)) % 2
		tx, ctx := protect.TxFromContext(msg.Context()), msg.Context()
		for _, id := range []int{first, 1 - first} {
			_, err := tx.ExecContext(ctx, fmt.Sprint("UPDATE ", counters, " SET n = n + 1 WHERE id = ", id))
			if err != nil {
				if inbox.IsConflict(fmt.Errorf("cannot count: %w", err)) {
					conflicts.Add(1)
				}
				return nil, err
			}
		}
		return nil, nil
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
	require.NoError(t, db.QueryRowContext(ctx, "SELECT MIN(n), MAX(n) FROM "+counters).Scan(&a, &b))
	assert.Equal(t, []int{messages, messages}, []int{a, b})
	assert.Positive(t, conflicts.Load())
	t.Logf("%d calls for %d messages", calls.Load(), messages)
}
