package amqpretry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/delay"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/publish"
)

// DelayPublisher is a message.Publisher for messages with a delay of Watermill's components/delay, and for all others.
// Package delay says what happens to them, and why none is lost.
type DelayPublisher struct {
	retrier *Retrier
	own     *publish.DelayPublisher
}

// NewDelayPublisher returns a publisher that publishes messages with a delay itself, over a connection of its own that
// the first of them opens. It hands all others to the publisher that it wraps, such as one of NewPublisher. It does not
// connect. Retrier.Close closes it if it is still open.
//
// The exchange and the routing key of a topic, and the marshaler, are those of the retrier's config.
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
	target := p.retrier.target(topic)

	return target.Exchange, target.Key
}

// Close waits for calls of Publish for CloseTimeout at the longest, and closes the wrapped publisher. Publish then fails
// with ErrClosed. It is safe to call it again, and at the same time.
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

// String names the publisher for Watermill.
func (p *DelayPublisher) String() string { return "amqpretry.DelayPublisher" }

// Format prints what it is, under any verb: it has the password of the broker's user in it.
func (p *DelayPublisher) Format(f fmt.State, _ rune) { format(f, "DelayPublisher", p) }
