package amqpretry

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/delay"
	"github.com/amqpretry/watermill-retry/config/publish"
	"github.com/amqpretry/watermill-retry/config/topology"
	publishing "github.com/amqpretry/watermill-retry/internal/publish"
)

// Publisher is a message.Publisher that returns when the broker has the messages. Package publish
// says what it does, and what its errors say.
//
// It takes the place of watermill-amqp's: the exchange and the routing key of a topic, and the
// marshaler, are those of the config, and it declares the exchange of a topic as that does.
// Messages are persistent, whatever the marshaler says, and have none of our headers but
// amqpretry-id, which tells a returned one. It does not read the config's ConfirmDelivery and
// ChannelPoolSize.
type Publisher struct {
	retrier *Retrier
	own     message.Publisher
	delays  *publishing.DelayPublisher // of NewDelayPublisher; nil of the others
}

// NewPublisherWith is NewPublisher with options of its own.
func (r *Retrier) NewPublisherWith(options publish.Options) (*Publisher, error) {
	errs := append(config.WithPath("Options", options.Validate()), r.config.Publish.Refused)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("invalid config of the publisher:\n%w", err)
	}
	settings := r.publisherSettings("publisher")
	settings.Options = options

	p := &Publisher{retrier: r, own: publishing.NewPublisher(settings)}
	if err := r.opened(p); err != nil {
		return nil, err
	}

	return p, nil
}

// NewPublisher returns a publisher with Options.Publisher, for the outputs of a router and for
// everything else that a service publishes. It does not connect: the first message opens a
// connection of its own. Retrier.Close closes the publisher if it is still open.
func (r *Retrier) NewPublisher() (*Publisher, error) { return r.NewPublisherWith(r.options.Publisher) }

// NewDelayPublisher returns a publisher for messages with a delay of Watermill's components/delay,
// and for all others. Package delay says what happens to them, and why none is lost. Those with a
// delay it publishes itself, over a connection of its own that the first of them opens. It hands
// all others to the publisher that it wraps, such as one of NewPublisher; Close closes that one,
// too. It does not connect. Retrier.Close closes it if it is still open.
//
// All messages of a call are checked first: with a *delay.MetadataError, a *delay.TooLongError, a
// *publish.TooLargeError or a *topology.NameError nothing was published. Those with a delay are
// then published before the others: a *publish.Error names those that are not known to be stored,
// and the others were not published then.
func (r *Retrier) NewDelayPublisher(publisher message.Publisher, options delay.Options) (*Publisher, error) {
	errs := []error{r.config.Publish.Refused, options.Validate()}
	if publisher == nil {
		errs = append(errs, &config.FieldError{Path: "publisher", Problem: "missing",
			Wanted: "the publisher for messages without a delay, such as one of amqp.NewPublisher"})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("invalid config of the delay publisher:\n%w", err)
	}
	settings := r.publisherSettings("delay publisher")
	own, err := publishing.NewDelayPublisher(publisher, settings, options, r.options.Names)
	if err != nil {
		return nil, err
	}

	p := &Publisher{retrier: r, own: own, delays: own}
	if err := r.opened(p); err != nil {
		return nil, err
	}

	return p, nil
}

// publisherSettings are those of a publisher with this name.
func (r *Retrier) publisherSettings(name string) publishing.Settings {
	return publishing.Settings{
		Connection:      r.connectionSettings(name),
		Logger:          r.options.Logger,
		Name:            name,
		CloseTimeout:    r.options.CloseTimeout,
		Declare:         !r.options.AssumeTopology,
		Marshaler:       r.config.Marshaler,
		Target:          r.target,
		DeclareExchange: r.config.Builder.ExchangeDeclare,
	}
}

// target is where a publisher sends the messages of a topic.
func (r *Retrier) target(topic string) topology.Target {
	return topology.Target{
		Exchange: r.config.Exchange.GenerateName(topic), Key: r.config.Publish.GenerateRoutingKey(topic),
	}
}

// Publish publishes messages to a topic, and returns nil when the broker has confirmed them all.
// Those of one call keep their order, unless some of them are published again. It is safe for
// concurrent use: calls share channels and do not wait for each other.
//
// With a *publish.TooLargeError, a *topology.NameError or an error of the marshaler nothing was
// published. A *publish.Error names the messages that are not known to be stored, and says why.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	return p.own.Publish(topic, messages...)
}

// Destination is where messages of a topic are published: to an exchange, which is "" for the
// default one, with a routing key. Package tracing asks for it.
func (p *Publisher) Destination(topic string) (exchange, routingKey string) {
	target := p.retrier.target(topic)

	return target.Exchange, target.Key
}

// Close waits for calls of Publish for CloseTimeout at the longest. Publish then fails with
// ErrClosed. It is safe to call it again, and at the same time.
func (p *Publisher) Close() error {
	defer p.retrier.closed(p)

	return p.own.Close()
}

// delayPublishers are those of NewDelayPublisher that nobody has closed.
func (r *Retrier) delayPublishers() (open []*publishing.DelayPublisher) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for c := range r.open {
		if p, is := c.(*Publisher); is && p.delays != nil {
			open = append(open, p.delays)
		}
	}

	return open
}

// delayPlans are the parts of ladders that the delay publishers have used.
func (r *Retrier) delayPlans() []topology.Plan {
	var plans []topology.Plan
	for _, p := range r.delayPublishers() {
		plans = append(plans, p.Plans()...)
	}

	return plans
}

// String names the publisher for Watermill.
func (p *Publisher) String() string {
	if p.delays != nil {
		return "amqpretry.DelayPublisher"
	}

	return "amqpretry.Publisher"
}

// Format prints what it is, under any verb: it has the password of the broker's user in it.
func (p *Publisher) Format(f fmt.State, _ rune) { format(f, "Publisher", p) }
