package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// Update implements [store.Values]. The row of the name is locked while change runs.
func (s *Store) Update(ctx context.Context, name string, keep time.Duration,
	change func(now time.Time, old []byte) ([]byte, error),
) error {
	if err := store.CheckLease(keep); err != nil {
		return err
	}
	var refused error // what change says, which is returned as it is
	err := again(ctx, func() error {
		err := s.update(ctx, column(name), keep, func(now time.Time, old []byte) ([]byte, error) {
			var value []byte
			value, refused = change(now, old)

			return value, refused
		})
		if refused != nil {
			return nil
		}

		return err
	})
	if refused != nil {
		return refused
	}
	if err != nil {
		return fmt.Errorf("cannot update a value in the table %q: %w", s.config.ValuesTable, err)
	}

	return nil
}

func (s *Store) update(ctx context.Context, name []byte, keep time.Duration,
	change func(now time.Time, old []byte) ([]byte, error),
) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // without effect after the commit

	now, old, err := s.lock(ctx, tx, name)
	if err != nil {
		return err
	}
	value, err := change(now, old)
	if err != nil || value == nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, s.sql.change, value, keep.Microseconds(), name); err != nil {
		return err
	}

	return tx.Commit()
}

// lock locks the row of a name, which it makes first where there is none: a rollback removes it
// again.
func (s *Store) lock(ctx context.Context, tx *sql.Tx, name []byte) (now time.Time, old []byte, err error) {
	err = tx.QueryRowContext(ctx, s.sql.lock, name).Scan(new(int))
	if errors.Is(err, sql.ErrNoRows) {
		_, err = tx.ExecContext(ctx, s.sql.place, name) // which locks it as well
	}
	if err != nil {
		return now, nil, err
	}
	// A statement has the time of its beginning, so the clock is read by one that begins after the
	// row is locked.
	var micros, rest int64
	if err = tx.QueryRowContext(ctx, s.sql.read, name).Scan(&micros, &rest, &old); err != nil {
		return now, nil, err
	}
	if rest <= 0 {
		old = nil
	}

	return time.UnixMicro(micros), old, nil
}
