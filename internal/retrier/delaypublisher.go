package retrier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry/delay"
	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/publish"
)

// DelayPublisher publishes messages with a delay. Package amqpretry says how.
type DelayPublisher struct {
	retrier *Retrier
	own     *publish.DelayPublisher
}

// NewDelayPublisher checks the options and returns a publisher that is not connected yet. Retrier.Close closes it if it
// is still open.
func (r *Retrier) NewDelayPublisher(publisher message.Publisher, options delay.Options) (*DelayPublisher, error) {
	errs := []error{r.config.Publish.Refused, options.Validate()}
	if publisher == nil {
		errs = append(errs, &config.FieldError{Path: "publisher", Problem: "missing",
			Wanted: "the publisher for messages without a delay, such as one of amqp.NewPublisher"})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("invalid config of the delay publisher:\n%w", err)
	}
	own, err := publish.NewDelayPublisher(publisher, r.publisherSettings("delay publisher"), options, r.options.Names)
	if err != nil {
		return nil, err
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	if r.ctx.Err() != nil {
		return nil, context.Cause(r.ctx)
	}
	p := &DelayPublisher{retrier: r, own: own}
	r.publishers[p] = struct{}{}

	return p, nil
}

// target is where a publisher sends the messages of a topic.
func (r *Retrier) target(topic string) topology.Target {
	return topology.Target{
		Exchange: r.config.Exchange.GenerateName(topic), Key: r.config.Publish.GenerateRoutingKey(topic),
	}
}

// Publish publishes messages to a topic, each when it is due.
func (p *DelayPublisher) Publish(topic string, messages ...*message.Message) error {
	return p.own.Publish(topic, messages...)
}

// Destination is where messages of a topic are published.
func (p *DelayPublisher) Destination(topic string) (exchange, routingKey string) {
	target := p.retrier.target(topic)

	return target.Exchange, target.Key
}

// Close ends what is being published, and closes the wrapped publisher.
func (p *DelayPublisher) Close() error {
	err := p.own.Close()

	p.retrier.mu.Lock()
	defer p.retrier.mu.Unlock()

	delete(p.retrier.publishers, p)

	return err
}

// openPublishers are the delay publishers that nobody has closed.
func (r *Retrier) openPublishers() []*DelayPublisher {
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.Collect(maps.Keys(r.publishers))
}

// closePublishers closes all publishers. The errors of the delay publishers are those of the publishers that they wrap, which somebody else has made.
func (r *Retrier) closePublishers() {
	var wg sync.WaitGroup
	for _, p := range r.openPublishers() {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := p.Close(); err != nil {
				r.options.Logger.Error("Cannot close the publisher that a delay publisher wraps", err, nil)
			}
		}()
	}
	wg.Wait()
	for _, p := range r.openPlain() { // after the delay publishers that wrap them
		wg.Add(1)
		go func() {
			defer wg.Done()
			_ = p.Close()
		}()
	}
	wg.Wait()
}

// delayPlans are the parts of backends that the delay publishers have used.
func (r *Retrier) delayPlans() []topology.Plan {
	var plans []topology.Plan
	for _, p := range r.openPublishers() {
		plans = append(plans, p.own.Plans()...)
	}

	return plans
}
