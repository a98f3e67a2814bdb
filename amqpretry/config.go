package amqpretry

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/retrier"
)

// Config is the config that New was given, for use with stock watermill-amqp: amqp.NewPublisher, and amqp.NewSubscriber
// where its limits are acceptable.
//
// Its TopologyBuilder declares the main queue as before, and the retry topology of the topic's policy. Its Marshaler
// never fails to unmarshal: what cannot be decoded reaches the middleware, which dead-letters it as it is.
//
// With Options.Addresses its connection has a Dial that tries them all in turn. That also does TLS, so the URI is then
// one without.
func (r *Retrier) Config() amqp.Config {
	c := r.config
	connection := r.retrier.ClientConnection()
	c.Connection.AmqpURI, c.Connection.TLSConfig, c.Connection.AmqpConfig = connection.AmqpURI, connection.TLSConfig,
		connection.AmqpConfig
	c.TopologyBuilder = &builder{r.retrier}
	c.Marshaler = r.retrier.Marshaler()
	c.Queue.GenerateName = r.retrier.GenerateName
	if c.Consume.Qos.PrefetchCount == 0 { // no limit
		c.Consume.Qos.PrefetchCount = DefaultPrefetch
	}

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

	return c
}

// translate says it as the retrier does for all versions of watermill-amqp.
func translate(c amqp.Config) retrier.Config {
	reconnect := retrier.Reconnect{}
	if c.Connection.Reconnect != nil {
		reconnect = retrier.Reconnect(*c.Connection.Reconnect)
	}

	return retrier.Config{
		Refused: c.ValidateSubscriber(),
		Connection: retrier.Connection{
			AmqpURI: c.Connection.AmqpURI, TLSConfig: c.Connection.TLSConfig, AmqpConfig: c.Connection.AmqpConfig,
			Reconnect: reconnect,
		},
		DefaultReconnect: retrier.Reconnect(*amqp.DefaultReconnectConfig()),
		Marshaler:        c.Marshaler,
		Builder:          userBuilder{c},
		Exchange: retrier.Exchange{GenerateName: c.Exchange.GenerateName, Declared: topology.MainExchange{
			Type: c.Exchange.Type, Durable: c.Exchange.Durable, AutoDelete: c.Exchange.AutoDeleted,
			Internal:  c.Exchange.Internal,
			Arguments: c.Exchange.Arguments,
		}},
		Queue: retrier.Queue{
			GenerateName: c.Queue.GenerateName, Durable: c.Queue.Durable, AutoDelete: c.Queue.AutoDelete,
			Exclusive: c.Queue.Exclusive,
			Arguments: c.Queue.Arguments,
		},
		QueueBind: retrier.QueueBind{
			// v2 gives the generator the queue.
			GenerateRoutingKey: func(main retrier.Main) string { return c.QueueBind.GenerateRoutingKey(main.Queue) },
			Arguments:          c.QueueBind.Arguments,
		},
		Consume: retrier.Consume{
			NoRequeueOnNack: c.Consume.NoRequeueOnNack, Consumer: c.Consume.Consumer, Exclusive: c.Consume.Exclusive,
			NoLocal: c.Consume.NoLocal, NoWait: c.Consume.NoWait, Arguments: c.Consume.Arguments,
			Qos: retrier.Qos(c.Consume.Qos),
		},
		Publish: retrier.Publish{
			Refused: c.ValidatePublisher(), GenerateRoutingKey: c.Publish.GenerateRoutingKey,
		},
		Transactional: c.Publish.Transactional,
	}
}

// userBuilder is the config's own TopologyBuilder.
type userBuilder struct{ config amqp.Config }

func (b userBuilder) BuildTopology(
	channel *amqp091.Channel, main retrier.Main, arguments amqp091.Table, logger watermill.LoggerAdapter,
) error {
	b.config.Queue.Arguments = arguments
	return b.config.TopologyBuilder.BuildTopology(channel, main.Queue, main.Exchange, b.config, logger)
}

func (b userBuilder) ExchangeDeclare(channel *amqp091.Channel, exchange string) error {
	return b.config.TopologyBuilder.ExchangeDeclare(channel, exchange, b.config)
}

// builder declares the topology for stock subscribers.
type builder struct{ retrier *retrier.Retrier }

func (b *builder) BuildTopology(
	channel *amqp091.Channel, queue, exchange string, _ amqp.Config, _ watermill.LoggerAdapter,
) error {
	return b.retrier.BuildTopology(channel, retrier.Main{Queue: queue, Exchange: exchange})
}

func (b *builder) ExchangeDeclare(channel *amqp091.Channel, exchange string, _ amqp.Config) error {
	return b.retrier.ExchangeDeclare(channel, exchange)
}
