package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// Delivery is the broker's side of a message, as the retrier that received it shows it to the
// middleware. Only retriers of this module implement it.
type Delivery interface {
	// Engine that decides over it, which tells the retriers of one router apart.
	Engine() *Engine
	// Queue is the queue that the message was consumed from.
	Queue() string
	// The following are those of Progress. They go without copies: each message has a goroutine of
	// its own, whose stack is to stay small.
	Policy() *config.Policy
	Narrow(policy config.Policy)
	State() *wire.State
	Advance(s wire.State)
	Remember(origin any)
	Origin() any
	Begin(at time.Time, call *retry.Event) bool
	End() (began time.Time, call *retry.Event, ok bool)
	// Enter and Leave tell that a middleware has the message in hand. A handler may ack or nack it
	// by itself: that is carried out when the last has left, and what the middleware says counts.
	Enter(handler string)
	Leave()
	// Withdrawn reports whether the message was taken away from its handler: a close that has
	// waited long enough, or a lost connection. What the handler then returns is no failure.
	Withdrawn() bool
	// NeedsCopy reports that only a copy can bring the message back, whatever the strategy of its
	// policy.
	NeedsCopy() bool
	// Succeeded notes that the handler succeeded: if the message is nacked all the same, outside a
	// shutdown, its outputs could not be published, and that is a failed attempt.
	Succeeded()
	// Settle hands over what is to happen. With the retrier's own consumer it returns at once and
	// the consumer acts; on a stock subscriber it returns when the copy is confirmed. After an
	// error the message must be nacked.
	Settle(ctx context.Context, s *Settlement) error
}

// Settlement is a verdict with what is needed to carry it out.
type Settlement struct {
	retry.Verdict
	// State is what the copy carries, for a retry and a dead letter.
	State wire.State

	failure failure
}

// Done reports that it was carried out: for a retry and a dead letter once the broker has confirmed
// the copy, for a drop when the message is acknowledged. published is what the copy carries, if
// there is one: without room for our headers it has become a dead letter.
func (s *Settlement) Done(published *wire.State) {
	verdict := s.Verdict
	if published != nil && published.Reason == retry.ReasonTooLarge {
		verdict = retry.Verdict{Action: retry.ActionDeadLetter, Reason: retry.ReasonTooLarge}
	}
	if published != nil && verdict.Action == retry.ActionDeadLetter { // a full frame shortens its headers
		s.failure.event.Cause = s.failure.causeOf(published, verdict, s.failure.event.Class)
	}
	s.failure.settle(carriedOut(verdict.Action), verdict, nil)
}

// Abandoned reports that the copy was given up, and why: the broker delivers the message again.
func (s *Settlement) Abandoned(err error) {
	s.failure.settle(retry.EventAbandoned, s.Verdict, err)
}

// Progress is the part of a [Delivery] that changes while its handler has it: the policy, which a
// middleware may narrow, the state, with each immediate try, and whether it is in an attempt. A
// handler may ask for them at any time.
type Progress struct {
	policy atomic.Pointer[config.Policy] // shared: never written to
	state  atomic.Pointer[wire.State]    // the same
	origin atomic.Pointer[any]           // see Remember

	mu    sync.Mutex
	began time.Time    // the present attempt; zero outside of one
	call  *retry.Event // with which it began; nil if nobody listens
	over  bool         // the consumer has said its last word
}

// Arrive begins with a message as it arrives, under the policy of its queue. Both must stay as they
// are.
func (p *Progress) Arrive(policy *config.Policy, state *wire.State) {
	p.policy.Store(policy)
	p.state.Store(state)
}

// Policy is the effective policy of the queue, or what a middleware has narrowed it to. It is
// shared: not to be changed.
func (p *Progress) Policy() *config.Policy { return p.policy.Load() }

// Narrow replaces the policy for this delivery.
func (p *Progress) Narrow(policy config.Policy) { p.policy.Store(&policy) }

// State is what the message carried when it arrived, or since Advance. It is shared: not to be
// changed.
func (p *Progress) State() *wire.State { return p.state.Load() }

// Advance notes that an immediate try has failed.
func (p *Progress) Advance(state wire.State) { p.state.Store(&state) }

// Remember keeps what a tracing has found in the message before its handler could change that. The
// first stays.
func (p *Progress) Remember(origin any) { p.origin.CompareAndSwap(nil, &origin) }

// Origin is what Remember has kept; nil if nothing.
func (p *Progress) Origin() any {
	if origin := p.origin.Load(); origin != nil {
		return *origin
	}

	return nil
}

// Begin notes that an attempt begins, and the event that was reported, if any. It is false if one
// has begun already and not ended, or nobody waits for its end any more.
func (p *Progress) Begin(at time.Time, call *retry.Event) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.over || !p.began.IsZero() {
		return false
	}
	p.began, p.call = at, call

	return true
}

// End notes that the attempt has ended, and gives what Begin was given. It is false if there is
// none. The message may be another goroutine's by then, so what is reported of it was looked up at
// the beginning.
func (p *Progress) End() (began time.Time, call *retry.Event, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	began, call = p.began, p.call
	p.began, p.call = time.Time{}, nil

	return began, call, !began.IsZero()
}

// Finish notes that nobody waits for an answer any more: no attempt begins.
func (p *Progress) Finish() {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.over = true
}
