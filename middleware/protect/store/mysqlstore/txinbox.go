package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// BeginTx implements [store.TxInbox]. It works with every isolation level.
//
// After InFlight or an error, roll the transaction back and do nothing else in it: the server may
// have ended it, because of a deadlock, and then commits each further statement at once.
//
// It sets innodb_lock_wait_timeout for its own statements only.
func (s *Store) BeginTx(ctx context.Context, tx *sql.Tx, handler, key string) (store.State, error) {
	state, err := s.beginTx(ctx, tx, column(handler), column(key))
	switch number(err) {
	case lockWaitTimeout, recordChanged, deadlock: // somebody else has it, or had it a moment ago
		return store.InFlight, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot claim a message in the table %q: %w; roll the transaction back",
			s.config.Table, err)
	}

	return state, nil
}

// The setting is one of the connection, which outlives the transaction.
const (
	setLockWait = `SET @amqpretry_lock_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = `
	resetWait   = `SET SESSION innodb_lock_wait_timeout = @amqpretry_lock_wait`
)

func (s *Store) beginTx(ctx context.Context, tx *sql.Tx, handler, key []byte) (_ store.State, err error) {
	seconds := int(math.Ceil(s.config.LockWait.Seconds()))
	if _, err := tx.ExecContext(ctx, fmt.Sprint(setLockWait, seconds)); err != nil {
		return 0, err
	}
	defer func() {
		if _, failed := tx.ExecContext(context.WithoutCancel(ctx), resetWait); failed != nil {
			err = errors.Join(err, failed) // the connection is broken, and not used again
		}
	}()

	return s.claimTx(ctx, tx, handler, key)
}

func (s *Store) claimTx(ctx context.Context, tx *sql.Tx, handler, key []byte) (store.State, error) {
	claimed, err := changes(tx.ExecContext(ctx, s.sql.claimTx, handler, key))
	if number(err) != duplicateKey && (claimed || err != nil) {
		return store.New, err
	}
	var done bool
	var rest int64
	err = tx.QueryRowContext(ctx, s.sql.lookTx, handler, key).Scan(&done, &rest)
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
