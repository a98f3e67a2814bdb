package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/amqpretry/watermill-retry/config"
)

// The defaults of a [MemoryConfig].
const (
	defaultRetention = time.Hour
	defaultMaxKeys   = 100_000
)

// MemoryConfig says how much a [Memory] remembers. The zero value is valid.
type MemoryConfig struct {
	// Retention is how long a message stays Done. One hour by default.
	Retention time.Duration
	// MaxKeys is how many messages of each handler stay Done; the oldest are forgotten first.
	// 100,000 by default.
	MaxKeys int
}

// Validate reports all problems in one error, as joined [*config.FieldError]s.
func (c MemoryConfig) Validate() error {
	var errs []error
	add := func(field, problem, wanted, found string) {
		errs = append(errs, &config.FieldError{
			Path: "MemoryConfig." + field, Problem: problem, Wanted: wanted, Found: found,
		})
	}
	if c.Retention != 0 && c.Retention < MinLease {
		add("Retention", "too short", "at least "+MinLease.String()+", or 0 for "+defaultRetention.String(),
			c.Retention.String())
	}
	if c.MaxKeys < 0 {
		add("MaxKeys", "negative", "1 or more, or 0 for "+strconv.Itoa(defaultMaxKeys), strconv.Itoa(c.MaxKeys))
	}

	return errors.Join(errs...)
}

// Memory is an [Inbox] and [Values] in the memory of one process. It ends with
// the process, and other instances of a service do not see it.
type Memory struct {
	config MemoryConfig

	mu       sync.Mutex
	handlers map[string]*memoryInbox
	values   map[string]memoryValue
	sweepAt  int    // number of values at which old ones are removed
	version  uint64 // of the latest change of a value
}

// NewMemory makes a Memory.
func NewMemory(c MemoryConfig) (*Memory, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.Retention = cmp.Or(c.Retention, defaultRetention)
	c.MaxKeys = cmp.Or(c.MaxKeys, defaultMaxKeys)

	return &Memory{
		config: c, handlers: map[string]*memoryInbox{}, values: map[string]memoryValue{}, sweepAt: firstSweep,
	}, nil
}

// firstSweep is the number of entries below which expired ones are left alone. From there on they
// are removed each time the number has doubled, which costs little for each entry.
const firstSweep = 1024

// memoryInbox is what is known of the messages of one handler.
type memoryInbox struct {
	entries map[string]*memoryClaim
	done    []*memoryClaim // the oldest first
	sweepAt int            // number of claims in flight at which expired ones are removed
}

// memoryClaim is a claim that is New for who has it.
type memoryClaim struct {
	memory *Memory
	inbox  *memoryInbox
	key    string
	until  time.Time // end of the lease
	done   time.Time // zero until it is committed
}

// foreignClaim is a claim that is not New.
type foreignClaim struct {
	state State
	rest  time.Duration
}

// Begin implements [Inbox].
func (m *Memory) Begin(ctx context.Context, handler, key string, lease time.Duration) (Claim, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := CheckLease(lease); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()

	inbox := m.handlers[handler]
	if inbox == nil {
		inbox = &memoryInbox{entries: map[string]*memoryClaim{}, sweepAt: firstSweep}
		m.handlers[handler] = inbox
	}
	now := time.Now()
	inbox.forget(now, m.config)
	if old := inbox.entries[key]; old != nil {
		if !old.done.IsZero() {
			return foreignClaim{state: Done}, nil
		}
		if rest := old.until.Sub(now); rest > 0 {
			return foreignClaim{state: InFlight, rest: rest}, nil
		}
	}
	c := &memoryClaim{memory: m, inbox: inbox, key: key, until: now.Add(lease)}
	inbox.entries[key] = c

	return c, nil
}

// forget removes what is too old, or too much.
func (i *memoryInbox) forget(now time.Time, c MemoryConfig) {
	for len(i.done) > 0 && (len(i.done) > c.MaxKeys || now.Sub(i.done[0].done) >= c.Retention) {
		delete(i.entries, i.done[0].key)
		i.done[0] = nil
		i.done = i.done[1:]
	}
	if len(i.entries)-len(i.done) < i.sweepAt {
		return
	}
	for key, c := range i.entries {
		if c.done.IsZero() && !c.until.After(now) {
			delete(i.entries, key)
		}
	}
	i.sweepAt = max(firstSweep, 2*(len(i.entries)-len(i.done)))
}

func (c *memoryClaim) State() State        { return New }
func (c *memoryClaim) Rest() time.Duration { return 0 }

// lock is followed by an unlock of the memory, unless it returns an error.
func (c *memoryClaim) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.memory.mu.Lock()

	return nil
}

func (c *memoryClaim) isOurs() bool { return c.inbox.entries[c.key] == c }

func (c *memoryClaim) Renew(ctx context.Context, lease time.Duration) error {
	if err := CheckLease(lease); err != nil {
		return err
	}
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.memory.mu.Unlock()

	if !c.isOurs() || !c.done.IsZero() {
		return ErrLost
	}
	c.until = time.Now().Add(lease)

	return nil
}

func (c *memoryClaim) Commit(ctx context.Context) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.memory.mu.Unlock()

	switch {
	case !c.done.IsZero():
		return nil
	case !c.isOurs():
		return ErrLost
	}
	c.done = time.Now()
	c.inbox.done = append(c.inbox.done, c)
	c.inbox.forget(c.done, c.memory.config)

	return nil
}

func (c *memoryClaim) Release(ctx context.Context) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.memory.mu.Unlock()

	if c.isOurs() && c.done.IsZero() {
		delete(c.inbox.entries, c.key)
	}

	return nil
}

func (c foreignClaim) State() State                               { return c.state }
func (c foreignClaim) Rest() time.Duration                        { return c.rest }
func (c foreignClaim) Renew(context.Context, time.Duration) error { return ErrLost }
func (c foreignClaim) Commit(context.Context) error               { return ErrLost }
func (c foreignClaim) Release(context.Context) error              { return nil }

// memoryValue is a value and its version, by which a change of somebody else is noticed.
type memoryValue struct {
	value   []byte
	version uint64
	until   time.Time
}

// Update implements [Values].
func (m *Memory) Update(ctx context.Context, name string, keep time.Duration,
	change func(now time.Time, old []byte) ([]byte, error)) error {
	if err := CheckLease(keep); err != nil {
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		now, old := m.load(name)
		value, err := change(now, bytes.Clone(old.value))
		if err != nil || value == nil {
			return err
		}
		if m.swap(name, old.version, value, keep) {
			return nil
		}
	}
}

func (m *Memory) load(name string) (time.Time, memoryValue) {
	m.mu.Lock()
	defer m.mu.Unlock()

	now := time.Now()
	old := m.values[name]
	if !old.until.After(now) {
		old.value = nil
	}

	return now, old
}

// swap replaces a value that is still of this version.
func (m *Memory) swap(name string, version uint64, value []byte, keep time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.values[name].version != version {
		return false
	}
	now := time.Now()
	m.version++
	m.values[name] = memoryValue{value: bytes.Clone(value), version: m.version, until: now.Add(keep)}
	if len(m.values) >= m.sweepAt {
		for name, v := range m.values {
			if !v.until.After(now) {
				delete(m.values, name)
			}
		}
		m.sweepAt = max(firstSweep, 2*len(m.values))
	}

	return true
}
