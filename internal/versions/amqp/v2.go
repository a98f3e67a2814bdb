//go:build !amqpv3

package amqp

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"
)

type (
	Config                 = amqp.Config
	DefaultMarshaler       = amqp.DefaultMarshaler
	DefaultTopologyBuilder = amqp.DefaultTopologyBuilder
	Marshaler              = amqp.Marshaler
	Publisher              = amqp.Publisher
	ReconnectConfig        = amqp.ReconnectConfig
	Subscriber             = amqp.Subscriber
	TopologyBuilder        = amqp.TopologyBuilder
)

var (
	DefaultReconnectConfig               = amqp.DefaultReconnectConfig
	GenerateQueueNameConstant            = amqp.GenerateQueueNameConstant
	GenerateQueueNameTopicName           = amqp.GenerateQueueNameTopicName
	GenerateQueueNameTopicNameWithSuffix = amqp.GenerateQueueNameTopicNameWithSuffix
	NewDurablePubSubConfig               = amqp.NewDurablePubSubConfig
	NewDurableQueueConfig                = amqp.NewDurableQueueConfig
	NewNonDurableQueueConfig             = amqp.NewNonDurableQueueConfig
	NewPublisher                         = amqp.NewPublisher
	NewSubscriber                        = amqp.NewSubscriber
)

const DefaultMessageUUIDHeaderKey = amqp.DefaultMessageUUIDHeaderKey

// BuildTopology builds.
func (b Builder) BuildTopology(channel *amqp091.Channel, queue, exchange string, conf Config,
	logger watermill.LoggerAdapter) error {
	return b(channel, queue, exchange, conf, logger)
}

// BuildTopology has a config's builder build as a stock subscriber does once it has generated the
// queue's name, without a channel.
func BuildTopology(conf Config, _, queue string) error {
	return conf.TopologyBuilder.BuildTopology(nil, queue, "", conf, watermill.NopLogger{})
}

// KeyOf is what the routing key of a binding is generated of.
func KeyOf(_, queue string) string { return queue }
