package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// cleanupBatch is how many rows one transaction of Cleanup deletes: few enough to take
// milliseconds.
const cleanupBatch = 200

// A row of the derived table in a removal.
const (
	oneMessage = "SELECT CAST(? AS BINARY) AS handler, CAST(? AS BINARY) AS message_key"
	oneName    = "SELECT CAST(? AS BINARY) AS name"
)

// Cleanup deletes messages that were handled, and claims whose lease ran out, longer ago than
// olderThan, which is Config.Retention when it is 0. It deletes values that have expired as well.
// It returns the number of deleted rows.
//
// It works in small transactions with pauses, skips rows that others have locked, and waits for
// nobody. Call it from a cron job or [Store.KeepClean]; several instances may do so at the same
// time.
func (s *Store) Cleanup(ctx context.Context, olderThan time.Duration) (int64, error) {
	olderThan = cmp.Or(olderThan, s.config.Retention)
	if err := store.CheckLease(olderThan); err != nil {
		return 0, err
	}
	deleted, err := s.cleanup(ctx, olderThan)
	if err != nil {
		return deleted, fmt.Errorf("cannot clean up the tables %q and %q: %w; the next clean-up continues",
			s.config.Table, s.config.ValuesTable, err)
	}

	return deleted, nil
}

func (s *Store) cleanup(ctx context.Context, olderThan time.Duration) (int64, error) {
	var until string
	err := s.db.QueryRowContext(ctx, `SELECT CAST(UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND AS CHAR)`,
		olderThan.Microseconds()).Scan(&until)
	if err != nil {
		return 0, err
	}
	// Each batch begins where the one before has ended, or it would read again what that has
	// deleted.
	from := "1970-01-01"
	deleted, err := batches(ctx, func() (n int64, err error) {
		last := from
		err = again(ctx, func() error {
			last = from
			n, err = s.batch(ctx, oneMessage, func(tx *sql.Tx) (*sql.Rows, error) {
				return tx.QueryContext(ctx, s.sql.clean, from, until, cleanupBatch)
			}, func(rows *sql.Rows) ([]any, error) {
				var handler, key []byte
				err := rows.Scan(&handler, &key, &last)

				return []any{handler, key}, err
			}, s.sql.remove)

			return err
		})
		from = last

		return n, err
	})
	if err != nil {
		return deleted, err
	}
	values, err := batches(ctx, func() (n int64, err error) {
		err = again(ctx, func() error {
			n, err = s.batch(ctx, oneName, func(tx *sql.Tx) (*sql.Rows, error) {
				return tx.QueryContext(ctx, s.sql.cleanValues, cleanupBatch)
			}, func(rows *sql.Rows) ([]any, error) {
				var name []byte
				err := rows.Scan(&name)

				return []any{name}, err
			}, s.sql.removeValues)

			return err
		})

		return n, err
	})

	return deleted + values, err
}

// batch deletes the rows that a query locks, by their primary keys. With READ COMMITTED it locks no
// gaps between rows, in which others insert theirs.
func (s *Store) batch(ctx context.Context, one string, query func(*sql.Tx) (*sql.Rows, error),
	scan func(*sql.Rows) ([]any, error), remove string,
) (int64, error) {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() //nolint:errcheck // without effect after the commit

	rows, err := query(tx)
	if err != nil {
		return 0, err
	}
	defer rows.Close() //nolint:errcheck // Err has told
	var keys []string
	var args []any
	for rows.Next() {
		key, err := scan(rows)
		if err != nil {
			return 0, err
		}
		keys, args = append(keys, one), append(args, key...)
	}
	if err := rows.Err(); err != nil || len(keys) == 0 {
		return 0, err
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf(remove, strings.Join(keys, " UNION ALL ")), args...); err != nil {
		return 0, err
	}

	return int64(len(keys)), tx.Commit()
}

// batches deletes until a batch is not full. After each batch it pauses for as long as that took.
func batches(ctx context.Context, batch func() (int64, error)) (deleted int64, err error) {
	for {
		began := time.Now()
		n, err := batch()
		deleted += n
		if err != nil || n < cleanupBatch {
			return deleted, err
		}
		select {
		case <-ctx.Done():
			return deleted, ctx.Err()
		case <-time.After(time.Since(began)):
		}
	}
}

// KeepClean calls Cleanup now and then at each interval, with Config.Retention, until ctx ends.
// Report is called with the result of each; nil is allowed.
func (s *Store) KeepClean(ctx context.Context, interval time.Duration, report func(deleted int64, err error)) {
	ticker := time.NewTicker(max(interval, time.Second))
	defer ticker.Stop()
	for {
		deleted, err := s.Cleanup(ctx, 0)
		if ctx.Err() != nil {
			return
		}
		if report != nil {
			report(deleted, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
