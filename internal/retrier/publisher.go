package retrier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry/publish"
	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	publishing "github.com/amqpretry/watermill-retry/internal/publish"
)

// Publisher publishes messages, and returns when the broker has them. Package amqpretry says how.
type Publisher struct {
	retrier *Retrier
	own     *publishing.Publisher
}

// NewPublisher checks the options and returns a publisher that is not connected yet. Retrier.Close closes it if it is
// still open.
func (r *Retrier) NewPublisher(options publish.Options) (*Publisher, error) {
	errs := append(config.Below("Options", options.Validate()), r.config.Publish.Refused)
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

// DefaultPublisher is one with the retrier's options.
func (r *Retrier) DefaultPublisher() (*Publisher, error) { return r.NewPublisher(r.options.Publisher) }

// Publish publishes messages to a topic.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	return p.own.Publish(topic, messages...)
}

// Destination is where messages of a topic are published.
func (p *Publisher) Destination(topic string) (exchange, routingKey string) {
	target := p.retrier.target(topic)

	return target.Exchange, target.Key
}

// Close ends what is being published.
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
