package redisstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// A claim is a string: "c" and the owner's token while it is in flight, "d" and the token once it
// is done. The token makes each script safe to run twice, which happens: the client sends a command
// again when the answer was lost.
//
// A key that is missing is nobody's: its lease has run out, it was released, or Redis has forgotten
// it. Then its last owner may still commit it, since he has handled the message, which spares a
// duplicate.
var (
	// begin: a new claim; or how long the lease of another runs; or done.
	begin = redis.NewScript(`
local held = redis.call('GET', KEYS[1])
if not held or held == 'c' .. ARGV[1] then
  redis.call('SET', KEYS[1], 'c' .. ARGV[1], 'PX', ARGV[2])
  return {'new'}
end
local mark = string.sub(held, 1, 1)
if mark == 'd' then return {'done'} end
if mark == 'c' then return {'in flight', redis.call('PTTL', KEYS[1])} end
return {'foreign'}`)

	// renew: ARGV[3] is 1 while the lease runs by the owner's clock. If the key is missing then,
	// Redis has forgotten it.
	renew = redis.NewScript(`
local held = redis.call('GET', KEYS[1])
if not held and ARGV[3] == '0' then return {'lost'} end
if held and held ~= 'c' .. ARGV[1] then return {'lost'} end
redis.call('SET', KEYS[1], 'c' .. ARGV[1], 'PX', ARGV[2])
return {'ok'}`)

	commit = redis.NewScript(`
local held = redis.call('GET', KEYS[1])
if held and held ~= 'c' .. ARGV[1] and held ~= 'd' .. ARGV[1] then return {'lost'} end
redis.call('SET', KEYS[1], 'd' .. ARGV[1], 'PX', ARGV[2])
return {'ok'}`)

	release = redis.NewScript(`
if redis.call('GET', KEYS[1]) == 'c' .. ARGV[1] then redis.call('DEL', KEYS[1]) end
return {'ok'}`)
)

// Begin claims a message, which has the key, for a handler. It returns an [*Error] when Redis
// cannot be asked. Then a claim may have been made whose answer was lost: it ends with its lease.
func (s *Store) Begin(ctx context.Context, handler, key string, lease time.Duration) (store.Claim, error) {
	c := &claim{store: s, handler: handler, key: key, redisKey: s.inboxKey(handler, key), token: rand.Text()}
	if err := store.CheckLease(lease); err != nil {
		return nil, c.wrap("claim", err)
	}
	c.until = time.Now().Add(lease)
	values, err := s.run(ctx, begin, c.redisKey, c.token, milliseconds(lease))
	if err != nil {
		return nil, c.fail("claim", err)
	}
	switch first(values) {
	case "new":
		c.state = store.New
	case "done":
		c.state = store.Done
	case "in flight":
		c.state = store.InFlight
		if ms, ok := values[len(values)-1].(int64); ok && ms > 0 {
			c.rest = time.Duration(ms) * time.Millisecond
		}
	default:
		return nil, c.fail("claim", errForeign)
	}

	return c, nil
}

type claim struct {
	store                         *Store
	handler, key, redisKey, token string
	state                         store.State
	rest                          time.Duration

	mu    sync.Mutex
	until time.Time // the lease runs until then, at least
	ended string    // how the caller has ended it: committed, released
}

const committed, released = "committed", "released"

func (c *claim) State() store.State  { return c.state }
func (c *claim) Rest() time.Duration { return c.rest }

func (c *claim) Renew(ctx context.Context, lease time.Duration) error {
	const op = "renew the claim on"
	if err := store.CheckLease(lease); err != nil {
		return c.wrap(op, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != store.New || c.ended != "" {
		return c.wrap(op, store.ErrLost)
	}
	now, runs := time.Now(), 0
	if now.Before(c.until) {
		runs = 1
	}
	if err := c.change(ctx, op, renew, milliseconds(lease), runs); err != nil {
		return err
	}
	c.until = now.Add(lease)

	return nil
}

// Commit may be called again when its answer was lost.
func (c *claim) Commit(ctx context.Context) error {
	const op = "commit"
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.state != store.New, c.ended == released:
		return c.wrap(op, store.ErrLost)
	case c.ended == committed:
		return nil
	}
	if err := c.change(ctx, op, commit, milliseconds(c.store.config.Retention)); err != nil {
		return err
	}
	c.ended = committed

	return nil
}

func (c *claim) Release(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != store.New || c.ended != "" {
		return nil
	}
	if err := c.change(ctx, "release", release); err != nil {
		return err
	}
	c.ended = released

	return nil
}

func (c *claim) change(ctx context.Context, op string, script *redis.Script, args ...any) error {
	values, err := c.store.run(ctx, script, c.redisKey, append([]any{c.token}, args...)...)
	if err != nil {
		return c.fail(op, err)
	}
	if first(values) != "ok" {
		return c.wrap(op, store.ErrLost)
	}

	return nil
}

func (c *claim) wrap(op string, err error) error {
	return fmt.Errorf("cannot %s a message for handler %q: key %s: %w", op, c.handler, quoted(c.key), err)
}

func (c *claim) fail(op string, cause error) error {
	return &Error{Op: op + " a message", Handler: c.handler, Key: c.key, Err: cause}
}

func first(values []any) string {
	if len(values) == 0 {
		return ""
	}
	s, _ := values[0].(string)

	return s
}
