package plug

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/transport"
)

// GenerateName is the name generator of the queues for stock subscribers. What it has generated can be declared, and is recognised.
func (p *Plug) GenerateName(topic string) string {
	main := p.main(topic)
	p.generated.add(topic, main.Queue, func() (*transport.Source, error) { return p.source(main) })

	return main.Queue
}

// BuildTopology declares the topology for stock subscribers. v2 does not tell the topic.
func (p *Plug) BuildTopology(channel *amqp091.Channel, main Main) error {
	source, err := p.generated.of(main)
	if err != nil {
		return err
	}
	if source.Declare == nil {
		return nil
	}

	return p.declare(channel, source, main.Exchange, "")
}

// ExchangeDeclare declares the exchange of a topic for stock publishers.
func (p *Plug) ExchangeDeclare(channel *amqp091.Channel, exchange string) error {
	if p.options.Topology == TopologyAssume {
		return nil
	}

	return p.config.Builder.ExchangeDeclare(channel, exchange)
}

// Marshaler is the user's, but it never fails to unmarshal and publishes none of our headers.
func (p *Plug) Marshaler() transport.Marshaler { return marshaler{p} }

type marshaler struct{ plug *Plug }

func (m marshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	return transport.Publish(m.plug.config.Marshaler, msg)
}

func (m marshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	return m.plug.captures.Unmarshal(m.plug.config.Marshaler, delivery), nil
}
