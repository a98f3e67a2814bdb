package amqpretry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/amqpconfig"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/consumer"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/observe"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/retry"
)

// ErrClosed is what a retrier and its subscribers return after their Close.
var ErrClosed = connection.ErrClosed

// Retrier gives the routers that use it retries and dead-letter queues. It is safe for concurrent
// use.
type Retrier struct {
	config  amqpconfig.Config // with the defaults filled in
	options Options

	registry  *registry
	generated *generated
	forwarder *publish.Forwarder
	observer  *observe.Observer
	captures  *consumer.Captures
	stock     consumer.Stock
	engine    *engine.Engine
	turns     consumer.Turns
	declared  publish.Declared

	ctx   context.Context // ends when Close begins
	close context.CancelCauseFunc

	connections connection.Open
	groups      consumer.Shared // the connection of all subscribers of groups

	mu   sync.Mutex
	open map[io.Closer]struct{} // subscribers and publishers that nobody has closed

	wrapped    atomic.Bool // a handler has been given a middleware of this retrier
	groupsUsed sync.Map    // names of groups that a subscriber was made for
	limitsTold sync.Map    // main queues of whose delivery limit it was told, as long as they are used
}

// New validates conf and options, and reports all problems in one error. It does not connect.
//
// The config is made of one of watermill-amqp's: by amqpv2.New or amqpv3.New, which are for users.
func New(conf amqpconfig.Config, options Options) (*Retrier, error) {
	if err := errors.Join(
		options.Validate(), validateConfig(conf, options.Concurrency),
		validateMainQueues(conf.Queue.Arguments, options),
	); err != nil {
		return nil, fmt.Errorf("invalid config of the retrier:\n%w", err)
	}
	options.setDefaults()

	conf.Connection = conf.Connection.Own()

	ctx, cancel := context.WithCancelCause(context.Background())
	p := &Retrier{
		ctx:       ctx,
		close:     cancel,
		config:    conf,
		options:   options,
		registry:  newRegistry(),
		generated: newGenerated(),
		captures:  consumer.NewCaptures(),
		open:      map[io.Closer]struct{}{},
	}

	host, _ := os.Hostname() // it only helps to find the instance
	p.engine = &engine.Engine{
		Logger:      options.Logger,
		LogOrder:    options.MiddlewareOrder == middleware.OrderLog,
		Host:        host,
		Decide:      options.Decide,
		ErrorText:   options.ErrorText,
		PayloadText: options.PayloadText,
		PanicStacks: options.PanicStacks,
		OnEvent:     options.OnEvent,
	}
	p.stock = consumer.Stock{Captures: p.captures, Engine: p.engine, Logger: options.Logger, Queue: p.generated.ofTopic}
	p.forwarder = publish.NewForwarder(publish.ForwarderSettings{
		Connection:  p.connectionSettings("forwarder"),
		Logger:      options.Logger,
		HoldWarning: options.HoldWarning,
		Redeclare:   !options.AssumeTopology,
	})
	p.registry.newForwarder = p.forwarder.ForQueue
	p.observer = observe.NewObserver(p.connectionSettings("observer"), options.Logger)

	return p, nil
}

// Middleware is the retry middleware, to be added to the router before all others. Messages that do
// not come from this retrier pass it untouched.
func (r *Retrier) Middleware(h message.HandlerFunc) message.HandlerFunc {
	r.wrapped.Store(true)

	return r.stock.Middleware(middleware.Retry{Of: r.engine}.Middleware(h))
}

// Poison is the final step alone, for handlers without retries: their first failure goes to the
// dead-letter queue. It may be added to single handlers of a router that has Middleware.
func (r *Retrier) Poison(h message.HandlerFunc) message.HandlerFunc {
	r.wrapped.Store(true)

	return r.stock.Middleware(middleware.Poison{Of: r.engine}.Middleware(h))
}

// Plan returns the queues, exchanges and bindings that a topic needs beside its main queue.
func (r *Retrier) Plan(topic string) (topology.Plan, error) {
	return r.plan(r.main(topic))
}

func (r *Retrier) plan(main mainQueue) (topology.Plan, error) {
	plan, err := topology.New(main.Queue, r.policy(main), r.options.Names)
	return plan, explain(main, err)
}

// Close closes the subscribers that are still open, then the publishers, and then the connection
// for copies. Close it after the router.
//
// It takes CloseTimeout at the longest for handlers and copies, and as long again for what is being
// published. If the broker does not answer at all, it takes some seconds more.
func (r *Retrier) Close() error {
	r.close(fmt.Errorf("the retrier is %w", connection.ErrClosed))

	// Publishers that wrap others close before these.
	r.closeAll(func(c io.Closer) bool { _, is := c.(*Subscriber); return is })
	r.closeAll(func(c io.Closer) bool { p, is := c.(*Publisher); return is && p.delays != nil })
	r.closeAll(func(io.Closer) bool { return true })
	r.forwarder.Close(time.Now().Add(time.Second))
	r.observer.Close(time.Now().Add(time.Second))

	return nil
}

// closeAll closes side by side what is open and matches.
func (r *Retrier) closeAll(matches func(io.Closer) bool) {
	r.mu.Lock()
	open := slices.DeleteFunc(slices.Collect(maps.Keys(r.open)), func(c io.Closer) bool { return !matches(c) })
	r.mu.Unlock()

	var wg sync.WaitGroup
	for _, c := range open {
		wg.Go(func() {
			// The error of a delay publisher is that of the publisher that it wraps, which somebody
			// else has made.
			err := c.Close()
			if p, is := c.(*Publisher); err != nil && is && p.delays != nil {
				r.options.Logger.Error("Cannot close the publisher that a delay publisher wraps", err, nil)
			}
		})
	}
	wg.Wait()
}

// opened notes what Close is to close.
func (r *Retrier) opened(c io.Closer) error {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	r.open[c] = struct{}{}

	return nil
}

// closed notes that Close need not close it any more.
func (r *Retrier) closed(c io.Closer) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.open, c)
}

// main generates the names of a topic.
func (r *Retrier) main(topic string) mainQueue {
	return mainQueue{Topic: topic, Queue: r.config.Queue.GenerateName(topic),
		Exchange: r.config.Exchange.GenerateName(topic)}
}

// queue registers a use of the queue of a topic, which ends with leave, and completes what is
// needed to consume from it.
func (r *Retrier) queue(main mainQueue) (*consumer.Queue, error) {
	policy := r.policy(main)
	known, err := r.registry.add(main, policy, r.options.Names)
	if err != nil {
		return nil, explain(main, err)
	}

	if err := r.checkMainQueue(main, policy, known.Plan); err != nil {
		r.registry.leave(main, false)
		return nil, err
	}

	queue := *known // the topic and the exchange are those of this call
	queue.Topic = main.Topic
	switch {
	case !r.options.AssumeTopology:
		queue.Declare = func(link *connection.Link, channel *amqp091.Channel) error {
			return r.declare(link, channel, &queue, main.Exchange)
		}
	case queue.Plan.Ladder != nil:
		queue.Declare = func(_ *connection.Link, channel *amqp091.Channel) error {
			if err := publish.CheckLanding(channel, queue.Plan); err != nil {
				return fmt.Errorf("cannot consume topic %q with exact delays: its landing queue is not provisioned; "+
					"import the file that Retrier.Definitions prints: %w", queue.Topic, err)
			}
			return nil
		}
	}

	return &queue, nil
}

// leave ends a use of the queue of a topic. Nothing is kept of a queue that nobody uses.
func (r *Retrier) leave(main mainQueue) {
	if r.registry.leave(main, false) {
		r.limitsTold.Delete(main.Queue)
	}
}

// declare declares the main queue as the user's builder does, protected where its policy says so,
// and the plan. link is nil where it is not ours.
func (r *Retrier) declare(link *connection.Link, channel *amqp091.Channel, queue *consumer.Queue,
	exchange string) error {
	version := ""
	if link != nil {
		version = link.Version()
	}
	main := mainQueue{Topic: queue.Topic, Queue: queue.Name, Exchange: exchange}
	if err := checkNative(queue.Plan, version); err != nil {
		return fmt.Errorf("cannot declare the topology of topic %q: %w", queue.Topic, err)
	}
	err := r.config.Builder.BuildTopology(channel, main, r.mainArguments(queue.Name, queue.Policy, queue.Plan),
		r.options.Logger)
	if err != nil {
		return fmt.Errorf("cannot declare the topology of topic %q: %w", queue.Topic, r.explainMain(queue, err))
	}
	if err := r.declared.DeclarePlan(r.ctx, link, channel, queue.Plan); err != nil {
		return fmt.Errorf("cannot declare the retry topology of topic %q: %w", queue.Topic, err)
	}
	if err := r.forwarder.CheckAccess(queue.Plan); err != nil {
		return fmt.Errorf("cannot dead-letter for topic %q: %w", queue.Topic, err)
	}
	r.warnOfLimit(queue, version)
	r.engine.Emit(retry.Event{Kind: retry.EventTopologyDeclared, Topic: queue.Topic, Queue: queue.Name})

	return nil
}

func (r *Retrier) connectionSettings(role string) connection.Settings {
	c := r.config.Connection
	// What is left out is the default: a backoff of zero would be a hot loop.
	byDefault := r.config.DefaultReconnect
	reconnect := cmp.Or(c.Reconnect, byDefault)

	return connection.Settings{
		URI:       c.AmqpURI,
		Addresses: r.options.Addresses,
		TLS:       c.TLSConfig,
		AMQP:      c.AmqpConfig,
		Reconnect: connection.Reconnect{
			InitialInterval:     cmp.Or(reconnect.BackoffInitialInterval, byDefault.BackoffInitialInterval),
			MaxInterval:         cmp.Or(reconnect.BackoffMaxInterval, byDefault.BackoffMaxInterval),
			RandomizationFactor: reconnect.BackoffRandomizationFactor,
			Multiplier:          cmp.Or(reconnect.BackoffMultiplier, byDefault.BackoffMultiplier),
		},
		Credentials: r.options.Credentials,
		Role:        role,
		Emit:        r.engine.Emit,
		Open:        &r.connections,
	}
}

// Format prints what it is, under any verb: the config has the password of the broker's user in it.
func (r *Retrier) Format(f fmt.State, _ rune) { format(f, "Retrier", r) }

func format(f fmt.State, name string, v any) { _, _ = fmt.Fprintf(f, "*amqpretry.%s(%p)", name, v) }
