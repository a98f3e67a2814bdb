package protect

import (
	"context"
	"sync"
	"time"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

const (
	// sharedTimeout is how long a message waits for the store of a limit or a breaker.
	sharedTimeout = time.Second
	// sharedPause is how long such a store is left alone after it did not answer: messages do not
	// wait for it one by one.
	sharedPause = 5 * time.Second
	// sharedKeep is how long a value is kept at least that nobody changes.
	sharedKeep = 24 * time.Hour
)

// shared is a value that instances share.
type shared struct {
	values store.Values
	keep   time.Duration
	report func(error)

	mu    sync.Mutex
	until time.Time // the store is left alone until then
}

// update changes the value. False means that the store cannot be asked; that is told, and each
// instance is on its own.
func (s *shared) update(ctx context.Context, name string, change func(now time.Time, old []byte) []byte) bool {
	s.mu.Lock()
	paused := time.Now().Before(s.until)
	s.mu.Unlock()
	if paused {
		return false
	}

	// A message that is withdrawn says nothing against the store.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sharedTimeout)
	defer cancel()

	err := safely(func() error {
		return s.values.Update(ctx, name, s.keep, func(now time.Time, old []byte) ([]byte, error) {
			return change(now, old), nil
		})
	})
	if err == nil {
		return true
	}
	s.mu.Lock()
	s.until = time.Now().Add(sharedPause)
	s.mu.Unlock()
	s.report(&StoreError{Op: "update", Handler: name, Err: err})

	return false
}
