package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
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
	var now int64
	if err := s.db.QueryRowContext(ctx, s.sql.clock).Scan(&now); err != nil {
		return 0, err
	}
	until := now - olderThan.Microseconds()
	deleted, err := s.batches(ctx, s.config.Table, []string{"handler", "message_key"},
		func(tx *sql.Tx, from int64) (*sql.Rows, error) {
			return tx.QueryContext(ctx, s.sql.clean, from, until, s.dialect.batch)
		})
	if err != nil {
		return deleted, err
	}
	values, err := s.batches(ctx, s.config.ValuesTable, []string{"name"}, func(tx *sql.Tx, _ int64) (*sql.Rows, error) {
		return tx.QueryContext(ctx, s.sql.cleanValues, s.dialect.batch)
	})

	return deleted + values, err
}

// doomed returns rows to delete, from a time on.
type doomed func(tx *sql.Tx, from int64) (*sql.Rows, error)

// batches deletes until a batch is not full. After each batch it pauses for as long as that took.
// Each begins where the one before has ended, or it would read again what that has deleted.
func (s *Store) batches(ctx context.Context, table string, key []string, query doomed) (deleted int64, err error) {
	var from, last int64
	for {
		began, n := time.Now(), 0
		err := s.again(ctx, func() error {
			return s.inTx(ctx, func(tx *sql.Tx) (err error) {
				n, last, err = s.batch(ctx, tx, table, key, query, from)

				return err
			})
		})
		if err != nil {
			return deleted, err
		}
		deleted, from = deleted+int64(n), last
		if n < s.dialect.batch {
			return deleted, nil
		}
		select {
		case <-ctx.Done():
			return deleted, ctx.Err()
		case <-time.After(time.Since(began)):
		}
	}
}

// batch deletes the rows of a query, and returns their number and the last of their times. Key are
// the columns of the primary key, at most two.
func (s *Store) batch(ctx context.Context, tx *sql.Tx, table string, key []string, query doomed, from int64,
) (n int, last int64, err error) {
	rows, err := query(tx, from)
	if err != nil {
		return 0, 0, err
	}
	defer rows.Close() //nolint:errcheck // Err has told
	var keys []any
	for last = from; rows.Next(); n++ {
		var values [2][]byte
		var stamp int64
		if err := rows.Scan(&values[0], &values[1], &stamp); err != nil {
			return 0, 0, err
		}
		for i := range key {
			keys = append(keys, values[i])
		}
		last = max(last, stamp)
	}
	if err := rows.Err(); err != nil || n == 0 || s.dialect.removal == nil {
		return n, last, err
	}
	_, err = tx.ExecContext(ctx, s.dialect.removal(s.dialect.quoted(table), key, n), keys...)

	return n, last, err
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
