package postgresstore

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
	}, serializationFailure, deadlockDetected)
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
	if _, err := tx.ExecContext(ctx, s.sql.change, name, value, keep.Microseconds()); err != nil {
		return err
	}

	return tx.Commit()
}

// lock locks the row of a name, which it makes first where there is none: a rollback removes it
// again.
func (s *Store) lock(ctx context.Context, tx *sql.Tx, name []byte) (now time.Time, old []byte, err error) {
	for {
		var expires time.Time
		err = tx.QueryRowContext(ctx, s.sql.lock, name).Scan(&now, &old, &expires)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			if _, err = tx.ExecContext(ctx, s.sql.place, name); err != nil {
				return now, nil, err
			}
		case err != nil:
			return now, nil, err
		case !expires.After(now):
			return now, nil, nil
		default:
			return now, old, nil
		}
	}
}
