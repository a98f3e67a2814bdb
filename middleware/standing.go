package middleware

import (
	"sync"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Standing is the part of a [Delivery] that changes while its handler has it: the policy, which a middleware may narrow, the
// state, with each immediate try, and whether it is in an attempt. A handler may ask for them at any time.
type Standing struct {
	mu     sync.Mutex
	policy config.Policy
	state  wire.State
	began  Event // of the present attempt; zero outside of one
	over   bool  // the consumer has said its last word
}

// NewStanding is that of a message as it arrives, under the policy of its queue.
func NewStanding(policy config.Policy, state wire.State) *Standing {
	return &Standing{policy: policy, state: state}
}

// Policy is the effective policy of the queue, or what a middleware has narrowed it to.
func (s *Standing) Policy() config.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.policy
}

// Narrow replaces the policy for this delivery.
func (s *Standing) Narrow(policy config.Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.policy = policy
}

// State is what the message carried when it arrived, or since Advance.
func (s *Standing) State() wire.State {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.state
}

// Advance notes that an immediate try has failed.
func (s *Standing) Advance(state wire.State) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.state = state
}

// Begin notes that an attempt begins. It is false if one has begun already and not ended, or nobody waits for its end any more.
func (s *Standing) Begin(attempt Event) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.over || !s.began.At.IsZero() {
		return false
	}
	s.began = attempt

	return true
}

// End notes that the attempt has ended, and gives the event with which it began. It is false if there is none. The message may be
// another goroutine's by then, so what is to be told of it was looked up at the beginning.
func (s *Standing) End() (attempt Event, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	attempt, s.began = s.began, Event{}

	return attempt, !attempt.At.IsZero()
}

// Finish notes that nobody waits for an answer any more: no attempt begins.
func (s *Standing) Finish() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.over = true
}
