package transport

import (
	"sync"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// standing is what changes about a delivery while its handler has it: the policy, which a middleware may narrow, and the state,
// with each immediate try. A handler may ask for both at any time.
type standing struct {
	mu       sync.Mutex
	narrowed *config.Policy
	advanced *wire.State
}

// Narrow replaces the policy for this delivery.
func (s *standing) Narrow(p config.Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.narrowed = &p
}

// Advance notes that an immediate try has failed.
func (s *standing) Advance(state wire.State) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.advanced = &state
}

// policy is the one of the queue, or what a middleware has made of it.
func (s *standing) policy(ofQueue config.Policy) config.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.narrowed != nil {
		return *s.narrowed
	}

	return ofQueue
}

// progress is the state on arrival, or the present one.
func (s *standing) progress(onArrival wire.State) wire.State {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.advanced != nil {
		return *s.advanced
	}

	return onArrival
}
