package plug

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/transport"
	"github.com/amqpretry/watermill-retry/middleware"
)

// Plug gives the routers that use it retries and dead-letter queues. It is safe for concurrent use.
type Plug struct {
	config  Config // with the defaults filled in
	options Options

	registry  *registry
	generated *generated
	forwarder *transport.Forwarder
	observer  *transport.Observer
	captures  *transport.Captures
	stock     transport.Stock
	poison    middleware.Poison
	turns     transport.Turns

	ctx   context.Context // ends when Close begins
	close context.CancelCauseFunc

	mu        sync.Mutex
	consumers map[*transport.Consumer]struct{}

	wrapped   atomic.Bool // a handler has been given a middleware of this plug
	dropsTold sync.Map    // main queues of which it was told that they can lose messages, as long as they are used
}

// New checks the config and the options, all of both at once, and returns a plug. The broker is not touched. owner is the plug as its users
// know it: what middleware.Poison.Owner is to be, where they make one by hand.
func New(conf Config, options Options, owner any) (*Plug, error) {
	if err := errors.Join(
		options.Validate(), validateConfig(conf, options.Concurrency), validateProtection(conf.Queue.Arguments, options.Policies),
	); err != nil {
		return nil, fmt.Errorf("invalid config of the retry plug:\n%w", err)
	}
	options.setDefaults()

	conf.Connection = conf.Connection.own()

	ctx, cancel := context.WithCancelCause(context.Background())
	p := &Plug{
		ctx:       ctx,
		close:     cancel,
		config:    conf,
		options:   options,
		registry:  newRegistry(),
		generated: newGenerated(),
		captures:  transport.NewCaptures(),
		consumers: map[*transport.Consumer]struct{}{},
	}

	host, err := os.Hostname()
	if err != nil {
		host = "" // it only helps to find the instance
	}
	p.poison = middleware.Poison{
		Owner:       owner,
		Logger:      options.Logger,
		Order:       options.MiddlewareOrder,
		Host:        host,
		Decide:      options.Decide,
		ErrorText:   options.ErrorText,
		PayloadText: options.PayloadText,
		PanicStacks: options.PanicStacks,
		OnEvent:     options.OnEvent,
	}
	p.stock = transport.Stock{Captures: p.captures, Owner: owner, Judge: p.poison, Logger: options.Logger, Source: p.generated.ofTopic}
	p.forwarder = transport.NewForwarder(transport.ForwarderSettings{
		Connection:  p.connectionSettings("forwarder"),
		Logger:      options.Logger,
		HoldWarning: options.HoldWarning,
		Redeclare:   options.Topology == TopologyDeclare,
	})
	p.registry.newLane = p.forwarder.NewLane
	p.observer = transport.NewObserver(p.connectionSettings("observer"), options.Logger)

	return p, nil
}

// Middleware is the retry middleware, to be added to the router before all others. Messages that do not come from this plug
// pass it untouched.
func (p *Plug) Middleware(h message.HandlerFunc) message.HandlerFunc {
	p.wrapped.Store(true)

	return p.stock.Middleware(middleware.Retry{Poison: p.poison}.Middleware(h))
}

// Poison is the final step alone, for handlers without retries: their first failure goes to the dead-letter queue. It may be
// added to single handlers of a router that has Middleware.
func (p *Plug) Poison(h message.HandlerFunc) message.HandlerFunc {
	p.wrapped.Store(true)

	return p.stock.Middleware(p.poison.Middleware(h))
}

// Plan is what the broker is to hold for a topic beside its main queue.
func (p *Plug) Plan(topic string) (topology.Plan, error) {
	return topology.New(p.config.Queue.GenerateName(topic), p.options.Policies.For(topic), p.options.Names)
}

// Close closes the subscribers that are still open, and then the connection for copies. Close it after the router. It takes
// CloseTimeout at the longest for handlers and copies, and some seconds more if the broker does not answer at all.
func (p *Plug) Close() error {
	p.close(fmt.Errorf("the retry plug is %w", transport.ErrClosed))

	p.mu.Lock()
	open := slices.Collect(maps.Keys(p.consumers))
	p.mu.Unlock()

	var wg sync.WaitGroup
	for _, c := range open {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_ = p.release(c)
		}()
	}
	wg.Wait()

	p.forwarder.Close(time.Now().Add(time.Second))
	p.observer.Close(time.Now().Add(time.Second))

	return nil
}

// main generates the names of a topic.
func (p *Plug) main(topic string) Main {
	return Main{Topic: topic, Queue: p.config.Queue.GenerateName(topic), Exchange: p.config.Exchange.GenerateName(topic)}
}

// source registers a use of the queue of a topic, which ends with leave, and completes what is needed to consume from it.
func (p *Plug) source(main Main) (*transport.Source, error) {
	policy := p.options.Policies.For(main.Topic)
	if err := p.checkProtection(main.Topic, main.Queue, policy); err != nil {
		return nil, err
	}

	known, err := p.registry.add(main, policy, p.options.Names)
	if err != nil {
		return nil, err
	}

	source := *known // the topic and the exchange are those of this call
	source.Topic = main.Topic
	if p.options.Topology == TopologyDeclare {
		source.Declare = func(channel *amqp091.Channel, version string) error {
			return p.declare(channel, &source, main.Exchange, version)
		}
	}

	return &source, nil
}

// leave ends a use of the queue of a topic. Nothing is kept of a queue that nobody uses.
func (p *Plug) leave(main Main) {
	if p.registry.leave(main) {
		p.dropsTold.Delete(main.Queue)
	}
}

// declare declares the main queue as the user's builder does, protected where its policy says so, and the plan. version is
// the broker's, or empty.
func (p *Plug) declare(channel *amqp091.Channel, source *transport.Source, exchange, version string) error {
	main := Main{Topic: source.Topic, Queue: source.Queue, Exchange: exchange}
	err := p.config.Builder.BuildTopology(channel, main, p.mainArguments(source.Queue, source.Policy), p.options.Logger)
	if err != nil {
		return fmt.Errorf("cannot declare the topology of topic %q: %w", source.Topic, p.explainMain(source, err))
	}
	if err := source.Plan.Declare(channel); err != nil {
		return fmt.Errorf("cannot declare the retry topology of topic %q: %w", source.Topic, err)
	}
	if err := p.forwarder.CheckAccess(source.Plan); err != nil {
		return fmt.Errorf("cannot dead-letter for topic %q: %w", source.Topic, err)
	}
	p.warnOfDrops(source, version)
	p.poison.Emit(middleware.Event{Kind: middleware.EventTopologyDeclared, Topic: source.Topic, Queue: source.Queue})

	return nil
}
