package publish

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/amqpretry/watermill-retry/config/topology"
)

// send publishes the messages of a call until the broker has confirmed all of them, the timeout or
// their contexts end, or the publisher is closed.
func (p *Publisher) send(c *call) error {
	for within := p.within(); ; {
		known := !c.missing.IsZero()
		tried := c.next()
		ctx, end := bound(within, tried)
		err := p.try(ctx, c, tried)
		left := c.open()
		for _, m := range left {
			if err != nil && !m.hasEnded() {
				m.err = withReason(ctx, err, m.err)
			}
		}
		end()
		if c.final || len(left) == 0 {
			return c.result()
		}
		if err == nil && !known && !c.missing.IsZero() && p.settings.Declare {
			continue // it is declared again at once, for the first time
		}
		if wait := c.pause(tried); wait > 0 && !pause(within, wait, left) {
			return c.result()
		}
	}
}

// within is the context of a call. All calls of a hundredth of the timeout have the same one, and a
// hundredth more time at the most: to make one for each message takes as long as to publish it.
func (p *Publisher) within() context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()

	now, timeout := time.Now(), p.settings.Options.Timeout
	if p.bounded == nil || now.Sub(p.began) > timeout/100 {
		p.began = now
		bounded, cancel := context.WithTimeoutCause(p.ctx, timeout+timeout/100, p.timeout)
		context.AfterFunc(bounded, cancel) // it ends by itself, or with Close
		p.bounded = bounded
	}

	return p.bounded
}

// pause waits between two rounds. It returns false when there is to be no other, and tells the
// messages why.
func pause(within context.Context, d time.Duration, left []*outgoing) bool {
	ctx, end := bound(within, left)
	defer end()
	if sleep(ctx, d) == nil {
		return true
	}
	for _, m := range left {
		end := ctx
		if m.ctx.Err() != nil {
			end = m.ctx
		}
		m.err = because(end, m.err)
	}

	return false
}

// bound returns a context that ends when those of all messages have ended.
func bound(within context.Context, messages []*outgoing) (context.Context, context.CancelFunc) {
	for _, m := range messages {
		if m.ctx.Done() == nil { // then not all of them end
			return within, func() {}
		}
	}
	ctx, cancel := context.WithCancelCause(within)

	var left atomic.Int64
	left.Store(int64(len(messages)))
	stops := make([]func() bool, 0, len(messages))
	for _, m := range messages {
		stops = append(stops, context.AfterFunc(m.ctx, func() {
			if left.Add(-1) == 0 {
				cancel(context.Cause(m.ctx))
			}
		}))
	}

	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

// leastRound is how many messages a queue that was full is offered at least.
const leastRound = 32

// next are the messages of the next round. A queue that is full takes what its consumers make room
// for, so it is offered twice of what the last round has brought in: to publish everything again
// each time would be refused by the thousands. Of those that were refused, these are the first ones
// of each target, as they keep their order, without those whose contexts have ended.
func (c *call) next() []*outgoing {
	left := c.open()
	if c.most == 0 {
		return left
	}
	next, offered := []*outgoing(nil), map[topology.Target]int{}
	for _, m := range left {
		switch {
		case m.ctx.Err() != nil:
			m.err = because(m.ctx, m.err)
		case !errors.Is(m.err, ErrRefused):
			next = append(next, m)
		case offered[m.target] < c.most:
			offered[m.target]++
			next = append(next, m)
		}
	}

	return next
}

// pause is how long to wait after a round. It is 0 when the round has brought in all that it had.
// Whatever was brought in makes it short again, as the room that comes next would go to other
// publishers.
func (c *call) pause(tried []*outgoing) time.Duration {
	in, full := 0, false
	for _, m := range tried {
		switch {
		case m.outcome != open:
			in++
		case errors.Is(m.err, ErrRefused):
			full = true
		}
	}
	if in > 0 && c.pauses != nil {
		c.pauses.Reset()
	}
	wasLimited := c.most > 0
	switch {
	case full:
		c.most = max(leastRound, 2*in)
	case wasLimited && in == len(tried):
		c.most *= 2
		return 0
	default:
		c.most = 0
	}
	if c.pauses == nil {
		c.pauses = growing()
	}

	return c.pauses.NextBackOff()
}
