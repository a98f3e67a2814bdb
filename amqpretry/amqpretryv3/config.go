package amqpretryv3

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/plug"
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
	connection := p.plug.ClientConnection()
	c.Connection.AmqpURI, c.Connection.TLSConfig, c.Connection.AmqpConfig = connection.AmqpURI, connection.TLSConfig, connection.AmqpConfig
	c.TopologyBuilder = &builder{p.plug}
	c.Marshaler = p.plug.Marshaler()
	c.Queue.GenerateName = p.plug.GenerateName

	return c
}

// withDefaults fills in what watermill-amqp would do without, or panic without.
func withDefaults(c amqp.Config) amqp.Config {
	if c.TopologyBuilder == nil {
		c.TopologyBuilder = &amqp.DefaultTopologyBuilder{}
	}
	if c.QueueBind.GenerateRoutingKey == nil {
		c.QueueBind.GenerateRoutingKey = func(string) string { return "" }
	}
	if c.Consume.Qos.PrefetchCount == 0 {
		c.Consume.Qos.PrefetchCount = DefaultPrefetch
	}

	return c
}

// translate says it as the plug does for all versions of watermill-amqp.
func translate(c amqp.Config) plug.Config {
	reconnect := plug.Reconnect{}
	if c.Connection.Reconnect != nil {
		reconnect = plug.Reconnect(*c.Connection.Reconnect)
	}

	return plug.Config{
		Refused: c.ValidateSubscriber(),
		Connection: plug.Connection{
			AmqpURI: c.Connection.AmqpURI, TLSConfig: c.Connection.TLSConfig, AmqpConfig: c.Connection.AmqpConfig, Reconnect: reconnect,
		},
		DefaultReconnect: plug.Reconnect(*amqp.DefaultReconnectConfig()),
		Marshaler:        c.Marshaler,
		Builder:          userBuilder{c},
		Exchange: plug.Exchange{GenerateName: c.Exchange.GenerateName, Declared: topology.MainExchange{
			Type: c.Exchange.Type, Durable: c.Exchange.Durable, AutoDelete: c.Exchange.AutoDeleted, Internal: c.Exchange.Internal,
			Arguments: c.Exchange.Arguments,
		}},
		Queue: plug.Queue{
			GenerateName: c.Queue.GenerateName, Durable: c.Queue.Durable, AutoDelete: c.Queue.AutoDelete, Exclusive: c.Queue.Exclusive,
			Arguments: c.Queue.Arguments,
		},
		QueueBind: plug.QueueBind{
			GenerateRoutingKey: func(main plug.Main) string { return c.QueueBind.GenerateRoutingKey(main.Topic) },
			Arguments:          c.QueueBind.Arguments,
		},
		Consume: plug.Consume{
			NoRequeueOnNack: c.Consume.NoRequeueOnNack, Consumer: c.Consume.Consumer, Exclusive: c.Consume.Exclusive,
			NoLocal: c.Consume.NoLocal, NoWait: c.Consume.NoWait, Arguments: c.Consume.Arguments, Qos: plug.Qos(c.Consume.Qos),
		},
		Transactional:  c.Publish.Transactional,
		RedeliveredKey: amqp.MetadataRedeliveredKey,
	}
}

// userBuilder is the config's own TopologyBuilder.
type userBuilder struct{ config amqp.Config }

func (b userBuilder) BuildTopology(
	channel *amqp091.Channel, main plug.Main, arguments amqp091.Table, logger watermill.LoggerAdapter,
) error {
	b.config.Queue.Arguments = arguments

	return b.config.TopologyBuilder.BuildTopology(channel, amqp.BuildTopologyParams{
		Topic: main.Topic, QueueName: main.Queue, ExchangeName: main.Exchange, RoutingKey: b.config.QueueBind.GenerateRoutingKey(main.Topic),
	}, b.config, logger)
}

func (b userBuilder) ExchangeDeclare(channel *amqp091.Channel, exchange string) error {
	return b.config.TopologyBuilder.ExchangeDeclare(channel, exchange, b.config)
}

// builder declares the topology for stock subscribers.
type builder struct{ plug *plug.Plug }

func (b *builder) BuildTopology(
	channel *amqp091.Channel, params amqp.BuildTopologyParams, _ amqp.Config, _ watermill.LoggerAdapter,
) error {
	return b.plug.BuildTopology(channel, plug.Main{Topic: params.Topic, Queue: params.QueueName, Exchange: params.ExchangeName})
}

func (b *builder) ExchangeDeclare(channel *amqp091.Channel, exchange string, _ amqp.Config) error {
	return b.plug.ExchangeDeclare(channel, exchange)
}
