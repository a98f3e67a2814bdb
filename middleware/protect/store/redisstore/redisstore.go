// Package redisstore keeps what protections share in Redis: an inbox ([store.Inbox]) and values
// ([store.Values]). It is a Go module of its own, so services that do not use it compile no Redis
// client.
//
//	s, err := redisstore.New(redis.NewClient(&redis.Options{Addr: "redis:6379"}), redisstore.Config{Prefix: "orders"})
//
// Each operation is one Lua script on one key. So it is atomic, and works with a single server,
// Sentinel and Redis Cluster. Leases and clocks are the server's: the clocks of the processes do
// not matter.
//
// Redis can forget. After a failover or a crash a claim or a mark may be missing. Then a message
// may be handled twice, or a limit lets a few more calls through. No message is lost, since the
// messages are in RabbitMQ. [Check] reports the settings that make this more likely, and
// docs/reference/stores.md#redis says how to set them.
package redisstore

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

const (
	// defaultPrefix is how keys begin by default.
	defaultPrefix = "amqpretry"
	// defaultRetention is how long a message stays Done by default. The last attempt of a message,
	// or its replay from a dead-letter queue, often comes days after the first one: a week has room
	// for a weekend.
	defaultRetention = 7 * 24 * time.Hour

	maxPrefix = 128
)

// Config says how a [Store] uses Redis. The zero value is valid.
type Config struct {
	// Prefix is how all keys begin, before a colon. Services that share a Redis and must not share
	// claims need different ones. It has up to 128 printable ASCII characters without spaces.
	// amqpretry by default.
	Prefix string
	// Retention is how long a message stays Done after Commit. A duplicate that comes later is
	// handled again. Each message costs memory for that long. 7 days by default.
	Retention time.Duration
}

// Validate reports all problems in one error, as joined [*config.FieldError]s. The zero value is
// valid.
func (c Config) Validate() error {
	var errs []error
	odd := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(c.Prefix) > maxPrefix || strings.ContainsFunc(c.Prefix, odd) {
		errs = append(errs, &config.FieldError{Path: "Config.Prefix", Problem: "out of bounds",
			Wanted: "up to 128 printable ASCII characters without spaces", Found: strconv.QuoteToASCII(c.Prefix)})
	}
	if c.Retention != 0 && c.Retention < store.MinLease {
		errs = append(errs, &config.FieldError{Path: "Config.Retention", Problem: "too short",
			Wanted: "at least " + store.MinLease.String() + ", or 0 for " + defaultRetention.String(),
			Found:  c.Retention.String()})
	}

	return errors.Join(errs...)
}

// Store is an inbox and values in Redis. It is safe for concurrent use, by any number of processes.
type Store struct {
	client redis.Scripter
	config Config
	locks  locks
}

var (
	_ store.Inbox  = (*Store)(nil)
	_ store.Values = (*Store)(nil)
)

// New makes a Store. It does not connect. The client is any of go-redis: a *redis.Client, also one
// for Sentinel, or a *redis.ClusterClient. The caller closes it.
func New(client redis.Scripter, c Config) (*Store, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if client == nil {
		return nil, errors.New("cannot make a Redis store: no client; pass one, such as redis.NewClient")
	}
	c.Prefix = cmp.Or(c.Prefix, defaultPrefix)
	c.Retention = cmp.Or(c.Retention, defaultRetention)

	return &Store{client: client, config: c}, nil
}

// run runs a script on one key until ctx ends. The client alone does not end with ctx: while it
// waits for an answer it heeds a deadline only with ContextTimeoutEnabled, and a cancellation
// never.
func (s *Store) run(ctx context.Context, script *redis.Script, key string, args ...any) ([]any, error) {
	if err := ctx.Err(); err != nil {
		return nil, ctx.Err()
	}
	if ctx.Done() == nil {
		return script.Run(ctx, s.client, []string{key}, args...).Slice()
	}
	type answer struct {
		values []any
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		values, err := script.Run(ctx, s.client, []string{key}, args...).Slice()
		answered <- answer{values, err}
	}()
	select {
	case a := <-answered:
		return a.values, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// milliseconds is a time as Redis takes it, rounded up: a lease is never shorter than asked for.
func milliseconds(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}

	return ms
}
