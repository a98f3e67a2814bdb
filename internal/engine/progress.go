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
	mu     sync.Mutex
	policy *config.Policy // shared: never written to
	state  *wire.State    // the same
	began  time.Time      // the present attempt; zero outside of one
	call   *retry.Event   // with which it began; nil if nobody was told
	over   bool           // the consumer has said its last word
	origin any            // see Remember
}

// Arrive begins with a message as it arrives, under the policy of its queue. Both must stay as they are.
func (p *Progress) Arrive(policy *config.Policy, state *wire.State) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.policy, p.state = policy, state
}

// Policy is the effective policy of the queue, or what a middleware has narrowed it to. It is shared: not to be
// changed.
func (p *Progress) Policy() *config.Policy {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.policy
}

// Narrow replaces the policy for this delivery.
func (p *Progress) Narrow(policy config.Policy) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.policy = &policy
}

// State is what the message carried when it arrived, or since Advance. It is shared: not to be changed.
func (p *Progress) State() *wire.State {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.state
}

// Advance notes that an immediate try has failed.
func (p *Progress) Advance(state wire.State) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.state = &state
}

// Remember keeps what a tracing has found in the message before its handler could change that. The first stays.
func (p *Progress) Remember(origin any) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.origin == nil {
		p.origin = origin
	}
}

// Origin is what Remember has kept; nil if nothing.
func (p *Progress) Origin() any {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.origin
}

// Begin notes that an attempt begins, and what of it was told, if anything. It is false if one has begun already and
// not ended, or nobody waits for its end any more.
func (p *Progress) Begin(at time.Time, call *retry.Event) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.over || !p.began.IsZero() {
		return false
	}
	p.began, p.call = at, call

	return true
}

// End notes that the attempt has ended, and gives what Begin was given. It is false if there is none. The message may
// be another goroutine's by then, so what is to be told of it was looked up at the beginning.
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
