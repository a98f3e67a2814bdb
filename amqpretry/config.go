package amqpretry

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/transport"
)

// Config is the config that New was given, for use with stock watermill-amqp: amqp.NewPublisher, and amqp.NewSubscriber where
// its limits are acceptable.
//
// Its TopologyBuilder declares the main queue as before, and the retry topology of the topic's policy. Its Marshaler never
// fails to unmarshal: what cannot be decoded reaches the middleware, which dead-letters it as it is.
//
// With Options.Addresses its connection has a Dial that tries them all in turn. That also does TLS, so the URI is then one without.
func (p *Plug) Config() amqp.Config {
	c := p.config
	c.Connection = inTurn(ownConnection(c.Connection), p.options.Addresses)
	c.TopologyBuilder = &builder{p}
	c.Marshaler = marshaler{p}

	// A builder of v2 is told the queue and not the topic; this generator sees both.
	generate := c.Queue.GenerateName
	c.Queue.GenerateName = func(topic string) string {
		queue := generate(topic)
		p.generated.add(topic, queue, func() (*transport.Source, error) {
			return p.source(topic, queue, c.Exchange.GenerateName(topic))
		})

		return queue
	}

	return c
}

// builder declares the topology for stock subscribers.
type builder struct{ plug *Plug }

func (b *builder) BuildTopology(
	channel *amqp091.Channel, queue, exchange string, _ amqp.Config, _ watermill.LoggerAdapter,
) error {
	source, err := b.plug.generated.ofQueue(queue)
	if err != nil {
		return err
	}
	if source.Declare == nil {
		return nil
	}

	return b.plug.declare(channel, source, exchange, "")
}

func (b *builder) ExchangeDeclare(channel *amqp091.Channel, exchange string, _ amqp.Config) error {
	if b.plug.options.Topology == TopologyAssume {
		return nil
	}

	return b.plug.config.TopologyBuilder.ExchangeDeclare(channel, exchange, b.plug.config)
}

// marshaler is the user's, but it never fails to unmarshal and publishes none of our headers.
type marshaler struct{ plug *Plug }

func (m marshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	return transport.Publish(m.plug.config.Marshaler, msg)
}

func (m marshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	return m.plug.captures.Unmarshal(m.plug.config.Marshaler, delivery), nil
}
