package amqpv3

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/amqpconfig"
)

// Retrier is an amqpretry.Retrier with the config that it was made of.
type Retrier struct {
	*amqpretry.Retrier
	config amqp.Config // with the defaults filled in
}

// New validates conf and options, and reports all problems in one error. It does not connect.
//
// The config is one of watermill-amqp's durable ones, or a user's own with his own TopologyBuilder
// and Marshaler.
func New(conf amqp.Config, options amqpretry.Options) (*Retrier, error) {
	// What watermill-amqp would do without, or panic without.
	if conf.TopologyBuilder == nil {
		conf.TopologyBuilder = &amqp.DefaultTopologyBuilder{}
	}
	if conf.QueueBind.GenerateRoutingKey == nil {
		conf.QueueBind.GenerateRoutingKey = func(string) string { return "" }
	}
	retrier, err := amqpretry.New(translate(conf), options)
	if err != nil {
		return nil, err
	}

	return &Retrier{retrier, conf}, nil
}

// Config is the config that New was given, for use with stock watermill-amqp: amqp.NewPublisher,
// and amqp.NewSubscriber where its limits are acceptable.
//
// Its TopologyBuilder declares the main queue as before, and the retry topology of the topic's
// policy. Its Marshaler never fails to unmarshal: what cannot be decoded reaches the middleware,
// which dead-letters it as it is.
//
// With Options.Addresses its connection has a Dial that tries them all in turn. That also does TLS,
// so the URI is then one without.
func (r *Retrier) Config() amqp.Config {
	c, stock := r.config, r.Stock()
	c.Connection.AmqpURI, c.Connection.TLSConfig, c.Connection.AmqpConfig = stock.Connection.AmqpURI,
		stock.Connection.TLSConfig, stock.Connection.AmqpConfig
	c.TopologyBuilder = &builder{stock}
	c.Marshaler = stock.Marshaler
	c.Queue.GenerateName = stock.GenerateName
	if c.Consume.Qos.PrefetchCount == 0 { // no limit
		c.Consume.Qos.PrefetchCount = amqpretry.DefaultPrefetch
	}

	return c
}

// translate says it as for all versions of watermill-amqp.
func translate(c amqp.Config) amqpconfig.Config {
	reconnect := amqpconfig.Reconnect{}
	if c.Connection.Reconnect != nil {
		reconnect = amqpconfig.Reconnect(*c.Connection.Reconnect)
	}

	return amqpconfig.Config{
		Refused: c.ValidateSubscriber(),
		Connection: amqpconfig.Connection{
			AmqpURI: c.Connection.AmqpURI, TLSConfig: c.Connection.TLSConfig, AmqpConfig: c.Connection.AmqpConfig,
			Reconnect: reconnect,
		},
		DefaultReconnect: amqpconfig.Reconnect(*amqp.DefaultReconnectConfig()),
		Marshaler:        c.Marshaler,
		Builder:          userBuilder{c},
		Exchange: amqpconfig.Exchange{GenerateName: c.Exchange.GenerateName, Declared: topology.Exchange{
			Type: c.Exchange.Type, Durable: c.Exchange.Durable, AutoDelete: c.Exchange.AutoDeleted,
			Internal:  c.Exchange.Internal,
			Arguments: c.Exchange.Arguments,
		}},
		Queue: amqpconfig.Queue{
			GenerateName: c.Queue.GenerateName, Durable: c.Queue.Durable, AutoDelete: c.Queue.AutoDelete,
			Exclusive: c.Queue.Exclusive,
			Arguments: c.Queue.Arguments,
		},
		QueueBind: amqpconfig.QueueBind{
			GenerateRoutingKey: func(main amqpconfig.Main) string { return c.QueueBind.GenerateRoutingKey(main.Topic) },
			Arguments:          c.QueueBind.Arguments,
		},
		Consume: amqpconfig.Consume{
			NoRequeueOnNack: c.Consume.NoRequeueOnNack, Consumer: c.Consume.Consumer, Exclusive: c.Consume.Exclusive,
			NoLocal: c.Consume.NoLocal, NoWait: c.Consume.NoWait, Arguments: c.Consume.Arguments,
			Qos: amqpconfig.Qos(c.Consume.Qos),
		},
		Publish: amqpconfig.Publish{
			Refused: c.ValidatePublisher(), GenerateRoutingKey: c.Publish.GenerateRoutingKey,
		},
		Transactional:  c.Publish.Transactional,
		RedeliveredKey: amqp.MetadataRedeliveredKey,
	}
}

// userBuilder is the config's own TopologyBuilder.
type userBuilder struct{ config amqp.Config }

func (b userBuilder) BuildTopology(
	channel *amqp091.Channel, main amqpconfig.Main, arguments amqp091.Table, logger watermill.LoggerAdapter,
) error {
	b.config.Queue.Arguments = arguments

	return b.config.TopologyBuilder.BuildTopology(channel, amqp.BuildTopologyParams{
		Topic: main.Topic, QueueName: main.Queue, ExchangeName: main.Exchange,
		RoutingKey: b.config.QueueBind.GenerateRoutingKey(main.Topic),
	}, b.config, logger)
}

func (b userBuilder) ExchangeDeclare(channel *amqp091.Channel, exchange string) error {
	return b.config.TopologyBuilder.ExchangeDeclare(channel, exchange, b.config)
}

// builder declares the topology for stock subscribers.
type builder struct{ stock amqpconfig.Stock }

func (b *builder) BuildTopology(
	channel *amqp091.Channel, params amqp.BuildTopologyParams, _ amqp.Config, _ watermill.LoggerAdapter,
) error {
	return b.stock.BuildTopology(channel, amqpconfig.Main{
		Topic: params.Topic, Queue: params.QueueName, Exchange: params.ExchangeName,
	})
}

func (b *builder) ExchangeDeclare(channel *amqp091.Channel, exchange string, _ amqp.Config) error {
	return b.stock.ExchangeDeclare(channel, exchange)
}
