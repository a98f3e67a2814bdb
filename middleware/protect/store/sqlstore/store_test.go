package sqlstore_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
	"github.com/amqpretry/watermill-retry/middleware/protect/store/sqlstore"
	"github.com/amqpretry/watermill-retry/middleware/protect/store/storetest"
)

// With each driver, isolation level and option.
func TestConformance(t *testing.T) {
	onEach(t, func(t *testing.T, on server) {
		for name, db := range on.variants(t, on.uri) {
			t.Run(name, func(t *testing.T) {
				c := tables(t, db)
				t.Run("inbox", func(t *testing.T) {
					storetest.Inbox(t, func(t *testing.T) store.Inbox { return on.store(t, db, c) })
				})
				t.Run("tx", func(t *testing.T) {
					storetest.TxInbox(t, db, func(t *testing.T) store.TxInbox { return on.store(t, db, c) })
				})
				t.Run("values", func(t *testing.T) {
					storetest.Values(t, func(t *testing.T) store.Values { return on.store(t, db, c) })
				})
			})
		}
	})
}

func TestConfig(t *testing.T) {
	require.NoError(t, sqlstore.Config{}.Validate())
	require.NoError(t, sqlstore.Config{Table: "retry.Inbox", ValuesTable: "v"}.Validate())
	err := sqlstore.Config{
		Table: `a"b`, ValuesTable: "a.b.c", Retention: -1, LockWait: time.Microsecond,
	}.Validate()
	for _, path := range []string{"Config.Table", "Config.ValuesTable", "Config.Retention", "Config.LockWait"} {
		assert.ErrorContains(t, err, path)
	}
	var field *config.FieldError
	require.ErrorAs(t, sqlstore.Config{Table: "amqpretry_values"}.Validate(), &field)
	assert.Equal(t, "Config.ValuesTable", field.Path)
	_, err = sqlstore.Postgres(nil, sqlstore.Config{})
	require.Error(t, err)
	_, err = sqlstore.Postgres(&sql.DB{}, sqlstore.Config{Table: " "})
	require.ErrorAs(t, err, &field)
	_, err = sqlstore.Postgres(nil, sqlstore.Config{Table: " ", Retention: -1})
	for _, text := range []string{"db is nil", "Config.Table", "Config.Retention"} {
		assert.ErrorContains(t, err, text)
	}
}

// Instances that start together make the tables together, also in a schema (MySQL: a database) of
// their own.
func TestCreateTables(t *testing.T) { onEach(t, testCreateTables) }

func testCreateTables(t *testing.T, on server) {
	db := on.pool(t)
	for range 5 {
		c := tables(t, db)
		schema := strings.TrimSuffix(c.Table, "_inbox")
		run(t, db, "CREATE SCHEMA "+schema)
		inSchema := sqlstore.Config{Table: schema + ".inbox", ValuesTable: schema + ".values"}
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for _, c := range []sqlstore.Config{c, inSchema} {
					s, err := on.open(db, c)
					if assert.NoError(t, err) {
						assert.NoError(t, s.CreateTables(context.Background()))
					}
				}
			})
		}
		wg.Wait()
		claim, err := on.store(t, db, inSchema).Begin(t.Context(), "h", "k", lease)
		require.NoError(t, err)
		assert.Equal(t, store.New, claim.State())
		run(t, db, "DROP SCHEMA "+schema+on.cascade)
	}
}

func TestNoTable(t *testing.T) { onEach(t, testNoTable) }

func testNoTable(t *testing.T, on server) {
	s, err := on.open(on.pool(t), sqlstore.Config{Table: "nowhere"})
	require.NoError(t, err)
	_, err = s.Begin(t.Context(), "h", "k", lease)
	require.ErrorContains(t, err, `cannot claim a message in the table "nowhere"`)
}

// A key that looks like the hash of a long one is another key.
func TestHashedKeys(t *testing.T) { onEach(t, testHashedKeys) }

func testHashedKeys(t *testing.T, on server) {
	db := on.pool(t)
	s := on.store(t, db, tables(t, db))
	long := strings.Repeat("k", 256)
	sum := sha256.Sum256([]byte(long))
	for _, key := range []string{long, "sha256:" + hex.EncodeToString(sum[:]), strings.Repeat("k", 255)} {
		claim, err := s.Begin(t.Context(), "h", key, lease)
		require.NoError(t, err)
		assert.Equal(t, store.New, claim.State(), "%.20s", key)
	}
}

// The two kinds of inbox share a table, so that a handler can change from one to the other.
func TestBothInboxes(t *testing.T) { onEach(t, testBothInboxes) }

func testBothInboxes(t *testing.T, on server) {
	db := on.pool(t)
	s := on.store(t, db, tables(t, db))
	beginTx := func(key string) (store.State, *sql.Tx) {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback() })
		state, err := s.BeginTx(t.Context(), tx, "h", key)
		require.NoError(t, err)

		return state, tx
	}
	state := func(key string) store.State {
		claim, err := s.Begin(t.Context(), "h", key, lease)
		require.NoError(t, err)

		return claim.State()
	}

	claim, err := s.Begin(t.Context(), "h", "claimed", lease)
	require.NoError(t, err)
	got, tx := beginTx("claimed")
	assert.Equal(t, store.InFlight, got)
	require.NoError(t, tx.Rollback())
	require.NoError(t, claim.Commit(t.Context()))
	got, tx = beginTx("claimed")
	assert.Equal(t, store.Done, got)
	require.NoError(t, tx.Rollback())

	late, err := s.Begin(t.Context(), "h", "ran out", store.MinLease)
	require.NoError(t, err)
	await.Within(t, soon, func() bool {
		got, tx := beginTx("ran out")
		if got != store.New {
			require.NoError(t, tx.Rollback())

			return false
		}

		return assert.NoError(t, tx.Commit())
	})
	require.ErrorIs(t, late.Commit(t.Context()), store.ErrLost)
	assert.Equal(t, store.Done, state("ran out"))
}

// BeginTx waits as long as LockWait says, and leaves the setting of the transaction as it was.
func TestLockWait(t *testing.T) { onEach(t, testLockWait) }

func testLockWait(t *testing.T, on server) {
	db := on.pool(t)
	c := tables(t, db)
	c.LockWait = on.lockWait
	s := on.store(t, db, c)
	begin := func() *sql.Tx {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback() })

		return tx
	}
	first := begin()
	_, err := first.ExecContext(t.Context(), on.setWait)
	require.NoError(t, err)
	state, err := s.BeginTx(t.Context(), first, "h", "k")
	require.NoError(t, err)
	require.Equal(t, store.New, state)
	var setting string
	require.NoError(t, first.QueryRowContext(t.Context(), on.askWait).Scan(&setting))
	assert.Equal(t, on.wait, setting)

	began := time.Now()
	state, err = s.BeginTx(t.Context(), begin(), "h", "k")
	require.NoError(t, err)
	assert.Equal(t, store.InFlight, state)
	assert.Greater(t, time.Since(began), on.least)
	assert.Less(t, time.Since(began), 40*time.Second, "any other setting makes it wait longer")
}

// A message that was handled after a transaction with REPEATABLE READ has begun is Done, or comes
// again.
func TestHandledAfterTheSnapshot(t *testing.T) { onEach(t, testHandledAfterTheSnapshot) }

func testHandledAfterTheSnapshot(t *testing.T, on server) {
	db := on.pool(t)
	c := tables(t, db)
	s := on.store(t, db, c)
	want := store.InFlight
	if on.seesLater(t, db) {
		want = store.Done
	}
	for level, want := range map[sql.IsolationLevel]store.State{
		sql.LevelReadCommitted: store.Done, sql.LevelRepeatableRead: want,
	} {
		tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
		require.NoError(t, err)
		count(t, tx, c.Table) // which takes the snapshot
		claim, err := s.Begin(t.Context(), level.String(), "k", lease)
		require.NoError(t, err)
		require.NoError(t, claim.Commit(t.Context()))
		state, err := s.BeginTx(t.Context(), tx, level.String(), "k")
		require.NoError(t, err)
		assert.Equal(t, want, state, level)
		require.NoError(t, tx.Rollback())
	}
}

// Two transactions that wait for each other end, and one of them comes again.
func TestDeadlock(t *testing.T) { onEach(t, testDeadlock) }

func testDeadlock(t *testing.T, on server) {
	db := on.pool(t)
	c := tables(t, db)
	c.LockWait = soon
	s := on.store(t, db, c)
	var txs [2]*sql.Tx
	for i := range txs {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		state, err := s.BeginTx(t.Context(), tx, "h", []string{"a", "b"}[i])
		require.NoError(t, err)
		require.Equal(t, store.New, state)
		txs[i] = tx
	}
	states := make(chan store.State, 2)
	for i, tx := range txs {
		go func() {
			state, err := s.BeginTx(context.Background(), tx, "h", []string{"b", "a"}[i])
			assert.NoError(t, err)
			_ = tx.Rollback()
			states <- state
		}()
	}
	assert.ElementsMatch(t, []store.State{store.New, store.InFlight}, []store.State{<-states, <-states})
}
