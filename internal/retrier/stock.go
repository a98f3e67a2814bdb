package retrier

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/consumer"
)

// GenerateName is the name generator of the queues for stock subscribers. What it has generated can be declared, and is
// recognised.
func (r *Retrier) GenerateName(topic string) string {
	main := r.main(topic)
	r.generated.add(topic, main.Queue, func() (*consumer.Queue, error) { return r.queue(main) })

	return main.Queue
}

// BuildTopology declares the topology for stock subscribers. v2 does not tell the topic.
func (r *Retrier) BuildTopology(channel *amqp091.Channel, main Main) error {
	queue, err := r.generated.of(main)
	if err != nil {
		return err
	}
	switch {
	case queue.Plan.Strategy != "":
		return &topology.StockStrategyError{Queue: queue.Name, Strategy: queue.Plan.Strategy}
	case queue.Declare == nil:
		return nil
	case r.options.Topology == topology.Assume:
		return queue.Declare(channel, "")
	default: // the exchange is that of this call
		return r.declare(channel, queue, main.Exchange, "")
	}
}

// ExchangeDeclare declares the exchange of a topic for stock publishers.
func (r *Retrier) ExchangeDeclare(channel *amqp091.Channel, exchange string) error {
	if r.options.Topology == topology.Assume {
		return nil
	}

	return r.config.Builder.ExchangeDeclare(channel, exchange)
}

// Marshaler is the user's, but it never fails to unmarshal and publishes none of our headers.
func (r *Retrier) Marshaler() codec.Marshaler { return marshaler{r} }

type marshaler struct{ retrier *Retrier }

func (m marshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	return codec.Publish(m.retrier.config.Marshaler, msg)
}

func (m marshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	return m.retrier.captures.Unmarshal(m.retrier.config.Marshaler, delivery), nil
}
