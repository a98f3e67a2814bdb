package amqpretry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/publish"
	"github.com/amqpretry/watermill-retry/config/topology"
	publishing "github.com/amqpretry/watermill-retry/internal/publish"
)

// Publisher is a message.Publisher that returns when the broker has the messages. Package publish says what it does, and
// what its errors say.
//
// It takes the place of watermill-amqp's: the exchange and the routing key of a topic, and the marshaler, are those of
// the config, and it declares the exchange of a topic as that does. Messages are persistent, whatever the marshaler says,
// and have none of our headers but amqpretry-id, which tells a returned one. It does not read the config's ConfirmDelivery and
// ChannelPoolSize.
type Publisher struct {
	retrier *Retrier
	own     *publishing.Publisher
}

// NewPublisherWith is NewPublisher with options of its own.
func (r *Retrier) NewPublisherWith(options publish.Options) (*Publisher, error) {
	errs := append(config.WithPath("Options", options.Validate()), r.config.Publish.Refused)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("invalid config of the publisher:\n%w", err)
	}
	settings := r.publisherSettings("publisher")
	settings.Options = options
	own := publishing.NewPublisher(settings)

	r.mu.Lock()
	defer r.mu.Unlock()

	if r.ctx.Err() != nil {
		return nil, context.Cause(r.ctx)
	}
	p := &Publisher{retrier: r, own: own}
	r.plain[p] = struct{}{}

	return p, nil
}

// NewPublisher returns a publisher with Options.Publisher, for the outputs of a router and for everything else that a
// service publishes. It does not connect: the first message opens a connection of its own. Retrier.Close closes the
// publisher if it is still open.
func (r *Retrier) NewPublisher() (*Publisher, error) { return r.NewPublisherWith(r.options.Publisher) }

// publisherSettings are those of a publisher with this name.
func (r *Retrier) publisherSettings(name string) publishing.Settings {
	return publishing.Settings{
		Connection:      r.connectionSettings(name),
		Logger:          r.options.Logger,
		Name:            name,
		CloseTimeout:    r.options.CloseTimeout,
		Declare:         r.options.Topology == topology.Declare,
		Marshaler:       r.config.Marshaler,
		Target:          r.target,
		DeclareExchange: r.config.Builder.ExchangeDeclare,
	}
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
	target := p.retrier.target(topic)

	return target.Exchange, target.Key
}

// Close waits for calls of Publish for CloseTimeout at the longest. Publish then fails with ErrClosed. It is safe to call
// it again, and at the same time.
func (p *Publisher) Close() error {
	err := p.own.Close()

	p.retrier.mu.Lock()
	defer p.retrier.mu.Unlock()

	delete(p.retrier.plain, p)

	return err
}

// openPlain are the publishers that nobody has closed.
func (r *Retrier) openPlain() []*Publisher {
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.Collect(maps.Keys(r.plain))
}

// String names the publisher for Watermill.
func (p *Publisher) String() string { return "amqpretry.Publisher" }

// Format prints what it is, under any verb: it has the password of the broker's user in it.
func (p *Publisher) Format(f fmt.State, _ rune) { format(f, "Publisher", p) }
