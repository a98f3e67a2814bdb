package postgresstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// BeginTx implements [store.TxInbox]. It works with every isolation level. In a transaction with
// REPEATABLE READ or SERIALIZABLE, a message that another transaction handled after this one began
// is InFlight: Done, when it comes back.
//
// It sets lock_timeout for its own statement only.
func (s *Store) BeginTx(ctx context.Context, tx *sql.Tx, handler, key string) (store.State, error) {
	state, err := s.beginTx(ctx, tx, column(handler), column(key))
	switch code(err) {
	case lockNotAvailable, serializationFailure, deadlockDetected: // somebody else has it, or had it a moment ago
		return store.InFlight, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot claim a message in the table %q: %w; roll the transaction back",
			s.config.Table, err)
	}

	return state, nil
}

// IsConflict implements [store.ConflictTeller].
func (s *Store) IsConflict(err error) bool {
	return has([]string{serializationFailure, deadlockDetected}, code(err))
}

func (s *Store) beginTx(ctx context.Context, tx *sql.Tx, handler, key []byte) (store.State, error) {
	// When a statement fails, the transaction is aborted, and this setting with it.
	before, err := setLockTimeout(ctx, tx, strconv.FormatInt(max(1, s.config.LockWait.Milliseconds()), 10)+"ms")
	if err != nil {
		return 0, err
	}
	state, err := s.claimTx(ctx, tx, handler, key)
	if err != nil {
		return 0, err
	}
	_, err = setLockTimeout(ctx, tx, before)

	return state, err
}

func (s *Store) claimTx(ctx context.Context, tx *sql.Tx, handler, key []byte) (store.State, error) {
	if claimed, err := changes(tx.ExecContext(ctx, s.sql.claimTx, handler, key)); claimed || err != nil {
		return store.New, err
	}
	var done bool
	var rest int64
	err := tx.QueryRowContext(ctx, s.sql.look, handler, key).Scan(&done, &rest)
	switch {
	case errors.Is(err, sql.ErrNoRows): // a claim was released, or a row was cleaned up, since the statement before
		return store.InFlight, nil
	case err != nil:
		return 0, err
	case done:
		return store.Done, nil
	case time.Duration(rest) > 0: // a claim of Begin
		return store.InFlight, nil
	}
	if taken, err := changes(tx.ExecContext(ctx, s.sql.takeTx, handler, key)); taken || err != nil {
		return store.New, err
	}

	return store.InFlight, nil
}

func changes(result sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()

	return n > 0, err
}

// setLockTimeout sets it for the rest of the transaction, and returns the setting before.
func setLockTimeout(ctx context.Context, tx *sql.Tx, to string) (string, error) {
	var before, now string
	err := tx.QueryRowContext(ctx, `WITH old AS MATERIALIZED (SELECT current_setting('lock_timeout') AS value)
		SELECT value, set_config('lock_timeout', $1, true) FROM old`, to).Scan(&before, &now)

	return before, err
}
