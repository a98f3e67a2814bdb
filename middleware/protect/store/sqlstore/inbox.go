package sqlstore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// Begin implements [store.Inbox].
func (s *Store) Begin(ctx context.Context, handler, key string, lease time.Duration) (store.Claim, error) {
	if err := store.CheckLease(lease); err != nil {
		return nil, err
	}
	c := &claim{store: s, handler: column(handler), key: column(key), owner: []byte(rand.Text())}
	for c.state == 0 {
		err := s.again(ctx, func() error { return c.try(ctx, s.db, s.sql.look, false, lease) })
		if err != nil {
			return nil, fmt.Errorf("cannot claim a message in the table %q: %w", s.config.Table, err)
		}
	}

	return c, nil
}

// BeginTx implements [store.TxInbox]. It works with every isolation level. In a transaction with
// REPEATABLE READ or SERIALIZABLE, a message that another transaction handled after this one began
// can be InFlight: Done, when it comes back.
//
// After InFlight or an error, roll the transaction back and do nothing else in it: the server may
// have ended it, because of a deadlock, and MySQL then commits each further statement at once.
//
// It sets lock_timeout (MySQL: innodb_lock_wait_timeout) for its own statements only.
func (s *Store) BeginTx(ctx context.Context, tx *sql.Tx, handler, key string) (store.State, error) {
	c := &claim{store: s, handler: column(handler), key: column(key), owner: []byte{}}
	err := c.tryTx(ctx, tx)
	switch {
	case s.IsConflict(err), s.dialect.is(err, s.dialect.lockTimeout):
		return store.InFlight, nil // somebody else has it, or had it a moment ago
	case err != nil:
		return 0, fmt.Errorf("cannot claim a message in the table %q: %w; roll the transaction back",
			s.config.Table, err)
	case c.state == 0: // the row has changed since the first statement
		return store.InFlight, nil
	default:
		return c.state, nil
	}
}

// claim is a claim of any state.
type claim struct {
	store               *Store
	handler, key, owner []byte
	state               store.State
	rest                time.Duration
}

// conn is a pool or a transaction.
type conn interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// try claims the message, or marks it as done, or finds out who has it. The state is 0 when that
// changed in between.
func (c *claim) try(ctx context.Context, on conn, look string, done bool, lease time.Duration) error {
	c.state, c.rest = store.New, 0
	d, texts, micros := c.store.dialect, c.store.sql, lease.Microseconds()
	claimed, err := changes(on.ExecContext(ctx, texts.claim, c.handler, c.key, c.owner, done, micros))
	if claimed || err != nil && !d.is(err, d.duplicate) {
		return err
	}
	var handled bool
	var rest int64
	err = on.QueryRowContext(ctx, look, c.handler, c.key).Scan(&handled, &rest)
	switch {
	case errors.Is(err, sql.ErrNoRows): // released, or removed
		c.state = 0
	case err != nil:
		return err
	case handled:
		c.state = store.Done
	case rest > 0:
		c.state, c.rest = store.InFlight, time.Duration(rest)*time.Microsecond
	default:
		taken, err := changes(on.ExecContext(ctx, texts.take, c.owner, done, micros, c.handler, c.key))
		if err != nil {
			return err
		}
		if !taken {
			c.state = 0
		}
	}

	return nil
}

func (c *claim) tryTx(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, c.store.sql.setWait); err != nil {
		return err
	}
	err := c.try(ctx, tx, c.store.sql.lookTx, true, 0)
	if err != nil && !c.store.dialect.waitStays {
		return err
	}
	_, failed := tx.ExecContext(context.WithoutCancel(ctx), c.store.dialect.resetWait)

	return errors.Join(err, failed)
}

// changes tells whether a statement changed a row.
func changes(result sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()

	return n > 0, err
}

// State implements [store.Claim].
func (c *claim) State() store.State { return c.state }

// Rest implements [store.Claim].
func (c *claim) Rest() time.Duration { return c.rest }

// Renew implements [store.Claim].
func (c *claim) Renew(ctx context.Context, lease time.Duration) error {
	if err := store.CheckLease(lease); err != nil {
		return err
	}

	return c.end(ctx, "renew", c.store.sql.renew, lease.Microseconds())
}

// Commit implements [store.Claim].
func (c *claim) Commit(ctx context.Context) error { return c.end(ctx, "commit", c.store.sql.commit) }

// Release implements [store.Claim].
func (c *claim) Release(ctx context.Context) error {
	if err := c.end(ctx, "release", c.store.sql.release); err != nil && !errors.Is(err, store.ErrLost) {
		return err
	}

	return nil
}

// end runs a statement on the row of the claim, as long as that is the caller's.
func (c *claim) end(ctx context.Context, verb, statement string, args ...any) error {
	if c.state != store.New {
		return store.ErrLost
	}
	args = append(args, c.handler, c.key, c.owner)
	var mine bool
	err := c.store.again(ctx, func() (err error) {
		mine, err = changes(c.store.db.ExecContext(ctx, statement, args...))

		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("cannot %s a claim in the table %q: %w", verb, c.store.config.Table, err)
	case !mine:
		return store.ErrLost
	default:
		return nil
	}
}
