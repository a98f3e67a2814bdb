package middleware

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
)

// Poison is the router middleware for handlers without retries: their first failure goes to the dead-letter queue,
// whatever the policy of its queue says of retries. It may be added to single handlers of a router that has [Retry].
type Poison struct {
	// Of is set by Retrier.Poison, which handles the messages of its retrier only. nil: those of all retriers.
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
