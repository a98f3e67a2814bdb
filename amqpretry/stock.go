package amqpretry

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/amqpconfig"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/consumer"
)

// Stock is what the adapters for watermill-amqp make a config for its own publishers and subscribers of.
func (r *Retrier) Stock() amqpconfig.Stock {
	return amqpconfig.Stock{
		Connection:      r.config.Connection.Own().InTurn(r.options.Addresses),
		Marshaler:       &marshaler{r},
		GenerateName:    r.generateName,
		BuildTopology:   r.buildStock,
		ExchangeDeclare: r.declareExchange,
	}
}

func (r *Retrier) generateName(topic string) string {
	main := r.main(topic)
	r.generated.add(topic, main.Queue, func() (*consumer.Queue, error) { return r.queue(main) })

	return main.Queue
}

// buildStock declares the topology for stock subscribers. v2 does not tell the topic.
func (r *Retrier) buildStock(channel *amqp091.Channel, main mainQueue) error {
	queue, err := r.generated.of(main)
	if err != nil {
		return err
	}
	switch {
	case queue.Plan.Strategy != "":
		return &topology.StrategyError{Queue: queue.Name, Strategy: queue.Plan.Strategy, Stock: true}
	case queue.Declare == nil:
		return nil
	case r.options.AssumeTopology:
		return queue.Declare(channel, "")
	default: // the exchange is that of this call
		return r.declare(channel, queue, main.Exchange, "")
	}
}

// declareExchange declares the exchange of a topic for stock publishers.
func (r *Retrier) declareExchange(channel *amqp091.Channel, exchange string) error {
	if r.options.AssumeTopology {
		return nil
	}

	return r.config.Builder.ExchangeDeclare(channel, exchange)
}

// marshaler is the user's, but it never fails to unmarshal and publishes none of our headers.
type marshaler struct{ retrier *Retrier }

func (m *marshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	return codec.Publish(m.retrier.config.Marshaler, msg)
}

func (m *marshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	return m.retrier.captures.Unmarshal(m.retrier.config.Marshaler, delivery), nil
}
