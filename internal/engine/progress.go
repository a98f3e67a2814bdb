package engine

import (
	"sync"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// Progress is the part of a [Delivery] that changes while its handler has it: the policy, which a middleware may
// narrow, the state, with each immediate try, and whether it is in an attempt. A handler may ask for them at any time.
type Progress struct {
	mu      sync.Mutex
	policy  *config.Policy // shared: never written to
	state   *wire.State    // the same
	began   time.Time      // the present attempt; zero outside of one
	attempt *retry.Event   // with which it began; nil if nobody was told
	over    bool           // the consumer has said its last word
	origin  any            // see Remember
}

// Arrive begins with a message as it arrives, under the policy of its queue. Both must stay as they are.
func (s *Progress) Arrive(policy *config.Policy, state *wire.State) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.policy, s.state = policy, state
}

// Policy is the effective policy of the queue, or what a middleware has narrowed it to. It is shared: not to be
// changed.
func (s *Progress) Policy() *config.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.policy
}

// Narrow replaces the policy for this delivery.
func (s *Progress) Narrow(policy config.Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.policy = &policy
}

// State is what the message carried when it arrived, or since Advance. It is shared: not to be changed.
func (s *Progress) State() *wire.State {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.state
}

// Advance notes that an immediate try has failed.
func (s *Progress) Advance(state wire.State) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.state = &state
}

// Remember keeps what a tracing has found in the message before its handler could change that. The first stays.
func (s *Progress) Remember(origin any) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.origin == nil {
		s.origin = origin
	}
}

// Origin is what Remember has kept; nil if nothing.
func (s *Progress) Origin() any {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.origin
}

// Begin notes that an attempt begins, and what of it was told, if anything. It is false if one has begun already and
// not ended, or nobody waits for its end any more.
func (s *Progress) Begin(at time.Time, attempt *retry.Event) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.over || !s.began.IsZero() {
		return false
	}
	s.began, s.attempt = at, attempt

	return true
}

// End notes that the attempt has ended, and gives what Begin was given. It is false if there is none. The message may
// be another goroutine's by then, so what is to be told of it was looked up at the beginning.
func (s *Progress) End() (began time.Time, attempt *retry.Event, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	began, attempt = s.began, s.attempt
	s.began, s.attempt = time.Time{}, nil

	return began, attempt, !began.IsZero()
}

// Finish notes that nobody waits for an answer any more: no attempt begins.
func (s *Progress) Finish() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.over = true
}
