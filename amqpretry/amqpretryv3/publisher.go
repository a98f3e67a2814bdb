// Code generated from amqpretry/publisher.go by scripts/mirror; DO NOT EDIT.

package amqpretryv3

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry/delay"
	"github.com/amqpretry/watermill-retry/amqpretry/publish"
	"github.com/amqpretry/watermill-retry/internal/retrier"
)

// Publisher is a message.Publisher that returns when the broker has the messages. Package publish says what it does, and
// what its errors say.
//
// It takes the place of watermill-amqp's: the exchange and the routing key of a topic, and the marshaler, are those of
// the config, and it declares the exchange of a topic as that does. Messages are persistent, whatever the marshaler says,
// and have none of our headers but amqpretry-id, which tells a returned one. It does not read the config's ConfirmDelivery and
// ChannelPoolSize.
type Publisher struct{ own *retrier.Publisher }

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher returns a publisher with Options.Publisher, for the outputs of a router and for everything else that a
// service publishes. It does not connect: the first message opens a connection of its own. Retrier.Close closes the
// publisher if it is still open.
func (r *Retrier) NewPublisher() (*Publisher, error) {
	own, err := r.retrier.DefaultPublisher()
	if err != nil {
		return nil, err
	}

	return &Publisher{own}, nil
}

// NewPublisherWith is NewPublisher with options of its own.
func (r *Retrier) NewPublisherWith(options publish.Options) (*Publisher, error) {
	own, err := r.retrier.NewPublisher(options)
	if err != nil {
		return nil, err
	}

	return &Publisher{own}, nil
}

// Publish publishes messages to a topic, and returns nil when the broker has confirmed them all. Those of one call keep
// their order, unless some of them are published again. It is safe for concurrent use: calls share channels and do not
// wait for each other.
//
// With a *publish.TooLargeError, a *topology.NameError or an error of the marshaler nothing was published. A
// *publish.Error names the messages that are not known to be stored, and says why.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	return p.own.Publish(topic, messages...)
}

// Destination is where messages of a topic are published: to an exchange, which is "" for the default one, with a routing
// key. Package tracing asks for it.
func (p *Publisher) Destination(topic string) (exchange, routingKey string) {
	return p.own.Destination(topic)
}

// Close waits for calls of Publish for CloseTimeout at the longest. Publish then fails with ErrClosed. It is safe to call
// it again, and at the same time.
func (p *Publisher) Close() error { return p.own.Close() }

// String names the publisher for Watermill.
func (p *Publisher) String() string { return p.own.String() }

// Format prints what it is, under any verb: it has the password of the broker's user in it.
func (p *Publisher) Format(f fmt.State, verb rune) { p.own.Format(f, verb) }

// DelayPublisher is a message.Publisher for messages with a delay of Watermill's components/delay, and for all others.
// Package delay says what happens to them, and why none is lost.
type DelayPublisher struct{ own *retrier.DelayPublisher }

var _ message.Publisher = (*DelayPublisher)(nil)

// NewDelayPublisher returns a publisher that publishes messages with a delay itself, over a connection of its own that
// the first of them opens. It hands all others to the publisher that it wraps, such as one of NewPublisher. It does not
// connect. Retrier.Close closes it if it is still open.
//
// The exchange and the routing key of a topic, and the marshaler, are those of the retrier's config.
func (r *Retrier) NewDelayPublisher(publisher message.Publisher, options delay.Options) (*DelayPublisher, error) {
	own, err := r.retrier.NewDelayPublisher(publisher, options)
	if err != nil {
		return nil, err
	}

	return &DelayPublisher{own}, nil
}

// Publish publishes messages to a topic. It returns when the broker has confirmed those with a delay, and the wrapped
// publisher has returned for the others. It is safe for concurrent use.
//
// All messages are checked first: with a *delay.MetadataError, a *delay.TooLongError, a *publish.TooLargeError or a
// *topology.NameError nothing was published. Those with a delay are then published before the others.
//
// A *publish.Error names the messages with a delay that are not known to be stored, each with its reason: no queue would
// get it, the broker refuses it, or has not confirmed it in time. Those without a delay were not published then.
func (p *DelayPublisher) Publish(topic string, messages ...*message.Message) error {
	return p.own.Publish(topic, messages...)
}

// Destination is where messages of a topic are published: to an exchange, which is "" for the default one, with a routing
// key. Package tracing asks for it.
func (p *DelayPublisher) Destination(topic string) (exchange, routingKey string) {
	return p.own.Destination(topic)
}

// Close waits for calls of Publish for CloseTimeout at the longest, and closes the wrapped publisher. Publish then fails
// with ErrClosed. It is safe to call it again, and at the same time.
func (p *DelayPublisher) Close() error { return p.own.Close() }

// String names the publisher for Watermill.
func (p *DelayPublisher) String() string { return p.own.String() }

// Format prints what it is, under any verb: it has the password of the broker's user in it.
func (p *DelayPublisher) Format(f fmt.State, verb rune) { p.own.Format(f, verb) }
