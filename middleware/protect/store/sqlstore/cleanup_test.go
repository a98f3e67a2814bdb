package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/env"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
	"github.com/amqpretry/watermill-retry/middleware/protect/store/sqlstore"
)

// fill puts old handled messages into a table: at least n, by doubling them. It returns how many.
func (s server) fill(t *testing.T, db *sql.DB, table string, n int) (rows int) {
	t.Helper()
	into := "INSERT INTO " + table + " (handler, message_key, owner, done, stamp) "
	run(t, db, into+"VALUES ('old', 'k', '', true, "+s.old+")")
	for rows = 1; rows < n; rows *= 2 {
		key := fmt.Sprintf("concat(%s, '-%d')%s", s.text, rows, s.bytes)
		run(t, db, into+"SELECT handler, "+key+", owner, done, "+s.old+" FROM "+table)
	}

	return rows
}

func count(t *testing.T, db interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, table string,
) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n))

	return n
}

// Cleanup removes what is old and nothing else: neither what is new, nor claims whose lease still
// runs.
func TestCleanup(t *testing.T) { onEach(t, testCleanup) }

func testCleanup(t *testing.T, on server) {
	db, c, s := on.all(t)
	rows := on.fill(t, db, c.Table, 5000)
	handled, err := s.Begin(t.Context(), "h", "handled", lease)
	require.NoError(t, err)
	require.NoError(t, handled.Commit(t.Context()))
	_, err = s.Begin(t.Context(), "h", "claimed", lease)
	require.NoError(t, err)
	keep := func(time.Time, []byte) ([]byte, error) { return []byte{1}, nil }
	require.NoError(t, s.Update(t.Context(), "kept", lease, keep))
	require.NoError(t, s.Update(t.Context(), "expired", store.MinLease, keep))

	// Somebody holds one of them: a transaction that has just found out that it is Done.
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	var key []byte
	require.NoError(t, tx.QueryRowContext(t.Context(),
		"SELECT message_key FROM "+c.Table+" WHERE handler = 'old' LIMIT 1 FOR UPDATE").Scan(&key))

	ctx, cancel := context.WithTimeout(t.Context(), soon) // it waits for nobody
	defer cancel()
	var deleted atomic.Int64
	var wg sync.WaitGroup
	for range 4 { // instances
		wg.Go(func() {
			n, err := s.Cleanup(ctx, 0)
			assert.NoError(t, err)
			deleted.Add(n)
		})
	}
	wg.Wait()
	require.NoError(t, tx.Rollback())
	assert.EqualValues(t, rows-1+1, deleted.Load(), "all but the one that is locked, and a value")
	assert.Equal(t, 3, count(t, db, c.Table))
	assert.Equal(t, 1, count(t, db, c.ValuesTable))
	n, err := s.Cleanup(t.Context(), 0)
	require.NoError(t, err)
	assert.EqualValues(t, 1, n)

	_, err = s.Cleanup(t.Context(), -time.Second)
	require.Error(t, err)
	await.Within(t, soon, func() bool {
		_, err := s.Cleanup(t.Context(), store.MinLease)

		return assert.NoError(t, err) && count(t, db, c.Table) == 1
	}, "the claim is left")
}

func TestKeepClean(t *testing.T) { onEach(t, testKeepClean) }

func testKeepClean(t *testing.T, on server) {
	db, c, s := on.all(t)
	rows := on.fill(t, db, c.Table, 10)
	ctx, cancel := context.WithCancel(t.Context())
	reported, ended := make(chan int64, 10), make(chan struct{})
	go func() {
		s.KeepClean(ctx, time.Second, func(deleted int64, err error) {
			assert.NoError(t, err)
			reported <- deleted
		})
		close(ended)
	}()
	assert.EqualValues(t, rows, <-reported)
	assert.EqualValues(t, 0, <-reported, "a second later")
	cancel()
	<-ended
}

// While Cleanup deletes a million rows, claims go on.
func TestCleanupBesideClaims(t *testing.T) { onEach(t, testCleanupBesideClaims) }

func testCleanupBesideClaims(t *testing.T, on server) {
	db, c, s := on.all(t)
	want := 1_000_000
	if testing.Short() {
		want = 50_000
	}
	rows := on.fill(t, db, c.Table, env.Int(t, "ROWS", want))

	alone := measure(t, s, "alone", func() { <-time.After(5 * time.Second) })
	var took time.Duration
	beside := measure(t, s, "beside", func() {
		began := time.Now()
		deleted, err := s.Cleanup(t.Context(), 24*time.Hour)
		took = time.Since(began)
		require.NoError(t, err)
		assert.EqualValues(t, rows, deleted)
	})
	table := report.Table{
		Title: "Claims beside a clean-up: " + on.product,
		Notes: []string{fmt.Sprintf("Cleanup deleted %d rows in %s. A claim is Begin and Commit, by 4 instances with "+
			"100/s each. Its p99 beside Cleanup is %.1f times that without.",
			rows, took.Round(100*time.Millisecond), beside.p(99)/alone.p(99))},
		Head: []string{"", "claims", "p50 ms", "p99 ms", "longest ms"},
	}
	table.Add("without", len(alone), alone.p(50), alone.p(99), alone.p(100))
	table.Add("during Cleanup", len(beside), beside.p(50), beside.p(99), beside.p(100))
	report.Write(t, table.String())
	assert.Less(t, beside.p(99), 500.0)
}

// latencies are sorted, in milliseconds.
type latencies []float64

func (l latencies) p(percent int) float64 { return l[min(len(l)-1, len(l)*percent/100)] }

// measure claims and commits messages at a steady pace until while is over.
func measure(t *testing.T, s *sqlstore.Store, name string, while func()) (all latencies) {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for worker := range 4 {
		wg.Go(func() {
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-pace.C:
				}
				began := time.Now()
				claim, err := s.Begin(context.Background(), name, fmt.Sprint(worker, "-", i), lease)
				if assert.NoError(t, err) && assert.Equal(t, store.New, claim.State()) {
					assert.NoError(t, claim.Commit(context.Background()))
				}
				mu.Lock()
				all = append(all, float64(time.Since(began).Microseconds())/1000)
				mu.Unlock()
			}
		})
	}
	while()
	close(stop)
	wg.Wait()
	slices.Sort(all)

	return all
}
