package consumer

import (
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// deaths is how many consumers may have died of a delivery: how often it was delivered without an answer, as far as the
// broker tells. RabbitMQ 4.0 to 4.2 count the rejections of the strategy cycle as well, and the counts travel along.
// More of those than a policy allows are none of ours, so as to hide no death.
func (s *Queue) deaths(d *amqp091.Delivery, version string) int64 {
	count := codec.DeliveryCount(d.Headers)
	if s.Policy.Strategy != config.StrategyCycle ||
		!rabbitmq.AtLeast(version, 4, 0) || rabbitmq.AtLeast(version, 4, 3) {
		return count
	}
	rejections, _ := codec.Rejections(d.Headers, s.Name)

	return max(0, count-min(rejections, int64(s.Policy.MaxRetries())+1))
}

// returned is what the broker tells of a message that it has brought back by itself.
func (s *Queue) returned(d *amqp091.Delivery, deliveries int64, from broker) engine.Returned {
	r := engine.Returned{TooLarge: !from.returns.Fits(d, from.frameSize)}
	if s.Policy.Strategy == config.StrategyCycle {
		var ok bool
		r.Failures, ok = codec.Rejections(d.Headers, s.Name)
		r.Foreign = !ok

		return r
	}

	// A copy has died in its retry queue, with the counts of a new message.
	r.Foreign = codec.HasDied(d.Headers) && !wire.Carries(d.Headers, s.Name)
	r.Uncounted = d.Redelivered && !codec.IsCounted(d.Headers)
	if d.Redelivered { // else its publisher has written it
		r.Failures = deliveries
	}

	return r
}
