package postgresstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// cleanupBatch is how many rows one transaction of Cleanup deletes: few enough to take
// milliseconds.
const cleanupBatch = 1000

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
	var until time.Time
	err := s.db.QueryRowContext(ctx, `SELECT clock_timestamp() - $1::bigint * interval '1 microsecond'`,
		olderThan.Microseconds()).Scan(&until)
	if err != nil {
		return 0, err
	}
	// Each batch begins where the one before has ended, or it would read again what that has
	// deleted.
	from := sql.NullTime{Time: time.Unix(0, 0), Valid: true}
	deleted, err := batches(ctx, func() (n int64, err error) {
		last := sql.NullTime{}
		err = again(ctx, func() error {
			return s.db.QueryRowContext(ctx, s.sql.clean, from.Time, until, cleanupBatch).Scan(&n, &last)
		}, serializationFailure, deadlockDetected)
		if last.Valid {
			from = last
		}

		return n, err
	})
	if err != nil {
		return deleted, err
	}
	values, err := batches(ctx, func() (n int64, err error) {
		err = again(ctx, func() error {
			result, err := s.db.ExecContext(ctx, s.sql.cleanValues, cleanupBatch)
			if err != nil {
				return err
			}
			n, err = result.RowsAffected()

			return err
		}, serializationFailure, deadlockDetected)

		return n, err
	})

	return deleted + values, err
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
