package publish

import (
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
)

// leastRound is how many messages a queue that was full is offered at least.
const leastRound = 32

// rounds are the attempts of a batch. A queue that is full takes what its consumers make room for, so it is offered twice
// of what the last round has brought in: to publish everything again each time would be refused by the thousands.
// Whatever was brought in makes the pause short again, as the room that comes next would go to other publishers.
type rounds struct {
	most   int // messages for each target that has refused some; 0 for all
	pauses *backoff.ExponentialBackOff
}

// next are the messages of the next round. Of those that were refused, these are the first ones of each target, as they
// keep their order, without those whose contexts have ended.
func (r *rounds) next(open []*Message) []*Message {
	if r.most == 0 {
		return open
	}
	next, offered := []*Message(nil), map[topology.Target]int{}
	for _, m := range open {
		switch {
		case m.ctx.Err() != nil:
			m.Err = because(m.ctx, m.Err)
		case !errors.Is(m.Err, ErrRefused):
			next = append(next, m)
		case offered[m.target] < r.most:
			offered[m.target]++
			next = append(next, m)
		}
	}

	return next
}

// pause is how long to wait after a round. It is 0 when the round has brought in all that it had.
func (r *rounds) pause(tried []*Message) time.Duration {
	in, full := 0, false
	for _, m := range tried {
		switch {
		case m.Resolved:
			in++
		case errors.Is(m.Err, ErrRefused):
			full = true
		}
	}
	if in > 0 && r.pauses != nil {
		r.pauses.Reset()
	}
	wasLimited := r.most > 0
	switch {
	case full:
		r.most = max(leastRound, 2*in)
	case wasLimited && in == len(tried):
		r.most *= 2
		return 0
	default:
		r.most = 0
	}
	if r.pauses == nil {
		r.pauses = growing()
		r.pauses.Reset()
	}

	return r.pauses.NextBackOff()
}
