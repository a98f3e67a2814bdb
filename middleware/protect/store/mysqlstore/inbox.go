package mysqlstore

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
	c := &claim{store: s, handler: column(handler), key: column(key), owner: []byte(rand.Text()), state: store.New}
	for {
		err := c.try(ctx, lease)
		if err != nil {
			return nil, fmt.Errorf("cannot claim a message in the table %q: %w", s.config.Table, err)
		}
		if c.state != 0 {
			return c, nil
		}
	}
}

// claim is a claim of any state.
type claim struct {
	store               *Store
	handler, key, owner []byte
	state               store.State
	rest                time.Duration
}

// try claims the message or finds out who has it. The state is 0 when that changed in between.
func (c *claim) try(ctx context.Context, lease time.Duration) error {
	c.state, c.rest = store.New, 0
	claimed, err := c.exec(ctx, c.store.sql.claim, c.handler, c.key, c.owner, lease.Microseconds())
	if number(err) != duplicateKey && (claimed || err != nil) {
		return err
	}
	var rest int64
	var done bool
	err = again(ctx, func() error {
		return c.store.db.QueryRowContext(ctx, c.store.sql.look, c.handler, c.key).Scan(&done, &rest)
	})
	switch {
	case errors.Is(err, sql.ErrNoRows): // released, or removed
		c.state = 0
	case err != nil:
		return err
	case done:
		c.state = store.Done
	case rest > 0:
		c.state, c.rest = store.InFlight, time.Duration(rest)*time.Microsecond
	default:
		taken, err := c.exec(ctx, c.store.sql.take, c.owner, lease.Microseconds(), c.handler, c.key)
		if err != nil {
			return err
		}
		if !taken {
			c.state = 0
		}
	}

	return nil
}

// exec runs one statement as a transaction of its own, and tells whether it changed a row.
func (c *claim) exec(ctx context.Context, statement string, args ...any) (bool, error) {
	var changed int64
	err := again(ctx, func() error {
		result, err := c.store.db.ExecContext(ctx, statement, args...)
		if err != nil {
			return err
		}
		changed, err = result.RowsAffected()

		return err
	})

	return changed > 0, err
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

	return c.end(ctx, "renew", c.store.sql.renew, lease.Microseconds(), c.handler, c.key, c.owner)
}

// Commit implements [store.Claim].
func (c *claim) Commit(ctx context.Context) error {
	return c.end(ctx, "commit", c.store.sql.commit, c.handler, c.key, c.owner)
}

// Release implements [store.Claim].
func (c *claim) Release(ctx context.Context) error {
	err := c.end(ctx, "release", c.store.sql.release, c.handler, c.key, c.owner)
	if err != nil && !errors.Is(err, store.ErrLost) {
		return err
	}

	return nil
}

func (c *claim) end(ctx context.Context, verb, statement string, args ...any) error {
	if c.state != store.New {
		return store.ErrLost
	}
	changed, err := c.exec(ctx, statement, args...)
	switch {
	case err != nil:
		return fmt.Errorf("cannot %s a claim in the table %q: %w", verb, c.store.config.Table, err)
	case !changed:
		return store.ErrLost
	default:
		return nil
	}
}
