package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

const (
	// versionLen is the length of the random text in front of a value, its version. It tells two
	// writes of the same bytes apart, and a write that the client sends twice is seen as one.
	versionLen = 26
	// maxTries ends an Update whose context does not end.
	maxTries = 200
	maxPause = 50 * time.Millisecond
)

var errContention = fmt.Errorf("other processes changed it %d times meanwhile", maxTries)

var (
	// read: the server's time in seconds and microseconds, and the value, if there is one.
	read = redis.NewScript(`
local now = redis.call('TIME')
local held = redis.call('GET', KEYS[1])
if not held then return {now[1], now[2]} end
return {now[1], now[2], held}`)

	// swap replaces a value if its version is still ARGV[1], which is empty where there was none.
	// ARGV[2] is the new one, which is there already when the client sends the command again.
	swap = redis.NewScript(`
local held = redis.call('GET', KEYS[1])
local version = held and string.sub(held, 1, 26) or ''
if version ~= ARGV[1] and version ~= ARGV[2] then return {'conflict'} end
redis.call('SET', KEYS[1], ARGV[2] .. ARGV[3], 'PX', ARGV[4])
return {'ok'}`)
)

// Update replaces the value of a name by what change makes of it. It tries again while other
// processes change the value, with pauses, until ctx ends. It returns an [*Error] when Redis cannot
// be asked; then the value may have been changed all the same.
func (s *Store) Update(
	ctx context.Context, name string, keep time.Duration, change func(now time.Time, old []byte) ([]byte, error),
) error {
	if err := store.CheckLease(keep); err != nil {
		return fmt.Errorf("cannot update the value %s: %w", quoted(name), err)
	}
	// One at a time in this process: only other processes can come in between.
	unlock, err := s.locks.lock(ctx, name)
	if err != nil {
		return valueError(name, err)
	}
	defer unlock()

	key := s.valueKey(name)
	for try := range maxTries {
		if err := pause(ctx, try); err != nil {
			return valueError(name, err)
		}
		answer, err := s.run(ctx, read, key)
		if err != nil {
			return valueError(name, err)
		}
		now, version, old, err := parse(answer)
		if err != nil {
			return valueError(name, err)
		}
		value, err := change(now, old)
		if err != nil || value == nil {
			return err
		}
		answer, err = s.run(ctx, swap, key, version, rand.Text()[:versionLen], value, milliseconds(keep))
		if err != nil {
			return valueError(name, err)
		}
		if first(answer) == "ok" {
			return nil
		}
	}

	return valueError(name, errContention)
}

func parse(answer []any) (now time.Time, version string, old []byte, err error) {
	texts := make([]string, len(answer))
	for i := range answer {
		texts[i], _ = answer[i].(string)
	}
	if len(texts) < 2 {
		return now, "", nil, fmt.Errorf("unexpected answer %v", answer)
	}
	seconds, err1 := strconv.ParseInt(texts[0], 10, 64)
	micros, err2 := strconv.ParseInt(texts[1], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return now, "", nil, err
	}
	now = time.Unix(seconds, micros*int64(time.Microsecond))
	if len(texts) == 2 {
		return now, "", nil, nil
	}
	if len(texts[2]) < versionLen {
		return now, "", nil, errForeign
	}

	return now, texts[2][:versionLen], []byte(texts[2][versionLen:]), nil
}

// pause waits at random, longer on average after each try. Most conflicts are rare: it does not
// wait after the first.
func pause(ctx context.Context, try int) error {
	if try < 2 {
		return nil
	}
	most := min(time.Millisecond<<min(try, 10), maxPause)
	timer := time.NewTimer(mathrand.N(most))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const opUpdate = "update the value"

func valueError(name string, cause error) error {
	return &Error{Op: opUpdate, Name: name, Err: cause}
}

// locks has a lock for each name that is in use.
type locks struct {
	mu sync.Mutex
	of map[string]*nameLock
}

type nameLock struct {
	held  chan struct{}
	users int
}

// lock waits for the lock of a name, or until ctx ends.
func (l *locks) lock(ctx context.Context, name string) (unlock func(), err error) {
	l.mu.Lock()
	if l.of == nil {
		l.of = map[string]*nameLock{}
	}
	n := l.of[name]
	if n == nil {
		n = &nameLock{held: make(chan struct{}, 1)}
		l.of[name] = n
	}
	n.users++
	l.mu.Unlock()

	select {
	case n.held <- struct{}{}:
		return func() { <-n.held; l.leave(name, n) }, nil
	case <-ctx.Done():
		l.leave(name, n)

		return nil, ctx.Err()
	}
}

func (l *locks) leave(name string, n *nameLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.users--; n.users == 0 {
		delete(l.of, name)
	}
}
