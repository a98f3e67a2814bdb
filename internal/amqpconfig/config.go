// Package amqpconfig says what a retrier needs to know of a config of watermill-amqp, in the same
// words for all of its versions.
package amqpconfig

import (
	"crypto/tls"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
)

// Config is what a retrier needs to know of a config of watermill-amqp: its fields are called as
// there.
type Config struct {
	// Refused is what watermill-amqp itself says against the config.
	Refused error

	Connection Connection
	// DefaultReconnect is watermill-amqp's.
	DefaultReconnect Reconnect

	Marshaler codec.Marshaler
	Builder   Builder
	Exchange  Exchange
	Queue     Queue
	QueueBind QueueBind
	Consume   Consume
	Publish   Publish

	// Transactional is config.Publish.Transactional.
	Transactional bool

	// RedeliveredKey is what messages have in their metadata that were delivered before; empty if
	// the version has no such key.
	RedeliveredKey string
}

// Builder declares a main queue as the config's own TopologyBuilder does.
type Builder interface {
	// BuildTopology declares the queue with these arguments instead of the config's.
	BuildTopology(channel *amqp091.Channel, main Main, arguments amqp091.Table, logger watermill.LoggerAdapter) error
	ExchangeDeclare(channel *amqp091.Channel, exchange string) error
}

// Main is a main queue as a topic uses it, for a consumer group or, with none, for the config.
type Main struct{ Topic, Queue, Exchange, Group string }

// Stock is what a retrier gives to stock publishers and subscribers of watermill-amqp.
type Stock struct {
	Connection Connection
	Marshaler  codec.Marshaler
	// GenerateName is the name generator of the queues. What it has generated can be declared, and
	// is recognised.
	GenerateName func(topic string) string
	// BuildTopology declares the topology of a queue. v2 does not tell the topic.
	BuildTopology func(channel *amqp091.Channel, main Main) error
	// ExchangeDeclare declares the exchange of a topic.
	ExchangeDeclare func(channel *amqp091.Channel, exchange string) error
}

// Connection says how to connect.
type Connection struct {
	AmqpURI    string
	TLSConfig  *tls.Config
	AmqpConfig *amqp091.Config
	Reconnect  Reconnect
}

// Reconnect is the backoff after a lost connection. An interval or a multiplier of zero is the
// default.
type Reconnect struct {
	BackoffInitialInterval     time.Duration
	BackoffRandomizationFactor float64
	BackoffMultiplier          float64
	BackoffMaxInterval         time.Duration
}

// Exchange is the one of a topic.
type Exchange struct {
	GenerateName func(topic string) string
	Declared     topology.Exchange // as it is declared; the name is generated
}

// Queue is the main queue of a topic.
type Queue struct {
	GenerateName func(topic string) string
	Durable      bool
	AutoDelete   bool
	Exclusive    bool
	Arguments    amqp091.Table
}

// QueueBind says how a main queue is bound to the exchange of a topic.
type QueueBind struct {
	GenerateRoutingKey func(Main) string
	Arguments          amqp091.Table
}

// Publish says how to publish.
type Publish struct {
	// Refused is what watermill-amqp itself says against the config of a publisher.
	Refused            error
	GenerateRoutingKey func(topic string) string
}

// Consume says how to consume.
type Consume struct {
	NoRequeueOnNack bool
	Consumer        string
	Exclusive       bool
	NoLocal         bool
	NoWait          bool
	Arguments       amqp091.Table
	Qos             Qos
}

// Qos is what the broker delivers ahead.
type Qos struct {
	PrefetchCount int
	PrefetchSize  int
	Global        bool
}
