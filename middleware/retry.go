package middleware

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
)

// Retry is the router middleware that gives failed messages their durable, delayed, non-blocking
// retries. It belongs outermost: what is added after it is part of the attempt.
//
// Retrier.Middleware in package amqpretry is one. Messages that no retrier has received pass it
// untouched, and where that is a mistake, it says so in the log, once for each handler.
type Retry struct {
	// Of is set by Retrier.Middleware, which handles the messages of its retrier only. nil: those
	// of all retriers.
	Of *engine.Engine
}

// Middleware returns the Retry middleware.
func (r Retry) Middleware(h message.HandlerFunc) message.HandlerFunc { return handle(h, r.Of, nil) }

// Poison is the router middleware for handlers without retries: their first failure goes to the
// dead-letter queue, whatever the policy of its queue says of retries. It may be added to single
// handlers of a router that has [Retry].
type Poison struct {
	// Of is set by Retrier.Poison, which handles the messages of its retrier only. nil: those of
	// all retriers.
	Of *engine.Engine
}

// Middleware returns the Poison middleware.
func (p Poison) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return handle(h, p.Of, func(d engine.Delivery) {
		policy := *d.Policy()
		policy.Mode, policy.Retries, policy.Delays, policy.Backoff, policy.Immediate = config.ModeDeadLetter, 0, nil,
			config.Backoff{}, 0
		d.Narrow(policy)
	})
}

// handle is the life of a message around a handler, under the policy of its queue, which narrow may
// narrow.
func handle(h message.HandlerFunc, of *engine.Engine, narrow func(engine.Delivery)) message.HandlerFunc {
	order, foreign := newChain(h, of), &foreign{only: of}

	return func(msg *message.Message) ([]*message.Message, error) {
		d := engine.DeliveryOf(msg)
		if d == nil || of != nil && d.Engine() != of {
			return foreign.passOn(h, msg)
		}
		if engine.IsOff(d) {
			return leaveAlone(d, msg, h)
		}

		d.Enter(message.HandlerNameFromCtx(msg.Context()))
		defer d.Leave()
		if err := order.refuse(msg, d); err != nil {
			return nil, err
		}
		if narrow != nil {
			narrow(d)
		}

		a := attempt{Engine: d.Engine(), delivery: d, msg: msg, ctx: msg.Context()}

		return a.run(h)
	}
}
