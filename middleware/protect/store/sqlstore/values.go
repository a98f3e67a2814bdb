package sqlstore

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
	key := column(name)
	var refused error // what change says, which is returned as it is
	err := s.again(ctx, func() error {
		return s.inTx(ctx, func(tx *sql.Tx) error {
			now, old, err := s.lock(ctx, tx, key)
			if err != nil {
				return err
			}
			var value []byte
			if value, refused = change(now, old); refused != nil || value == nil {
				return errUnchanged
			}
			_, err = tx.ExecContext(ctx, s.sql.change, value, keep.Microseconds(), key)

			return err
		})
	})
	switch {
	case errors.Is(err, errUnchanged):
		return refused
	case err != nil:
		return fmt.Errorf("cannot update a value in the table %q: %w", s.config.ValuesTable, err)
	default:
		return nil
	}
}

// errUnchanged rolls a transaction back.
var errUnchanged = errors.New("nothing was changed")

// lock locks the row of a name, which it makes first where there is none: a rollback removes it
// again.
func (s *Store) lock(ctx context.Context, tx *sql.Tx, name []byte) (now time.Time, old []byte, err error) {
	var micros, rest int64
	read := func() error { return tx.QueryRowContext(ctx, s.sql.lock, name).Scan(&micros, &rest, &old) }
	err = read()
	missing := errors.Is(err, sql.ErrNoRows)
	if missing {
		_, err = tx.ExecContext(ctx, s.sql.place, name) // which locks it as well
	}
	if err == nil && (missing || s.dialect.stale) {
		err = read()
	}
	if err != nil {
		return now, nil, err
	}
	if rest <= 0 {
		old = nil
	}

	return time.UnixMicro(micros), old, nil
}
