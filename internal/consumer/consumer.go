package consumer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// Settings say how to consume.
type Settings struct {
	Connection connection.Settings
	// Shared is what consumers have that use one connection together, all with the same Connection
	// settings. Optional: without it a consumer has a connection of its own.
	Shared    *Shared
	Logger    watermill.LoggerAdapter
	Marshaler codec.Marshaler
	// RedeliveredKey is what a message has in its metadata that the broker has delivered before;
	// empty for nothing.
	RedeliveredKey string
	// Engine decides over what fails, and reports what has become of it.
	Engine *engine.Engine

	// Concurrency is how many messages of a subscription are handed out at a time.
	Concurrency int
	// Prefetch is how many the broker delivers ahead, those included that are held. Zero for one
	// that follows the handlers.
	Prefetch int

	Consumer  string // tag; empty for a generated one
	Exclusive bool
	NoLocal   bool
	NoWait    bool
	Arguments amqp091.Table

	// SingleActive says that the queues have single active consumers.
	SingleActive bool
	// Expires says that the broker deletes queues that have had no consumer for a while.
	Expires bool
	// Turns are shared by all consumers of the retrier.
	Turns *Turns

	CloseTimeout time.Duration
}

// Consumer consumes from queues over one connection, its own or a shared one.
type Consumer struct {
	settings Settings
	*base

	mu            sync.Mutex
	subscriptions map[*subscription]struct{} // those that are open, and those that have been refused
	closed        bool
	looked        time.Time     // see lookForLeaders
	closing       chan struct{} // closed when Close begins
	done          chan struct{} // closed when Close is through
}

// New returns a consumer that is connected.
func New(ctx context.Context, settings Settings) (*Consumer, error) {
	c := &Consumer{
		settings:      settings,
		base:          settings.Shared.enter(settings.Connection, settings.Logger),
		subscriptions: map[*subscription]struct{}{},
		closing:       make(chan struct{}),
		done:          make(chan struct{}),
	}

	if _, err := c.connection.TryLink(ctx); err != nil {
		settings.Shared.leave(c.base, time.Now())
		return nil, err
	}

	return c, nil
}

// Subscribe declares the topology of a queue and consumes from it, until ctx ends or Close. What
// goes wrong here, a broker that cannot be reached, a conflict, a queue that is missing, a
// permission, is an error; later it is logged, and tried again with backoff.
func (c *Consumer) Subscribe(ctx context.Context, queue Queue) (<-chan *message.Message, error) {
	open, cancel := until(ctx, c.closing)
	defer cancel()

	s, first, err := c.open(ctx, open, queue)
	if expired, _ := rabbitmq.HasExpired(err); expired { // which is known now: the next connection has another token
		s, first, err = c.open(ctx, open, queue)
	}
	if err != nil {
		return nil, err
	}

	if !c.begin(ctx, s, first) {
		s.close(time.Now().Add(closeGrace))
		first.close() // nothing was handed out
		s.abort(connection.ErrClosed)

		return nil, connection.ErrClosed
	}

	return s.out, nil
}

// open begins a subscription: its first session consumes.
func (c *Consumer) open(ctx, open context.Context, queue Queue) (*subscription, *session, error) {
	link, err := c.tryLink(open)
	if err != nil {
		return nil, nil, err
	}

	s := newSubscription(ctx, c, queue)
	session, err := s.openFirst(open, link)
	if err != nil {
		s.abort(err)
		if expired, _ := rabbitmq.HasExpired(err); expired {
			link.AwaitEnd(open)
		}

		return nil, nil, err
	}

	return s, session, nil
}

// until returns a context that the end of a subscription or of its consumer ends as well: a
// connection that others go on using does not end with it.
func until(ctx context.Context, closing <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-closing:
			cancel(connection.ErrClosed)
		case <-ctx.Done():
		}
	}()

	return ctx, func() { cancel(nil) }
}

func (c *Consumer) tryLink(ctx context.Context) (*connection.Link, error) {
	if isClosed(c.closing) {
		return nil, connection.ErrClosed
	}

	return c.connection.TryLink(ctx)
}

// begin starts a subscription, unless the consumer was closed meanwhile.
func (c *Consumer) begin(ctx context.Context, s *subscription, first *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.closed {
		return false
	}
	c.subscriptions[s] = struct{}{}

	s.start(ctx, first, func() {
		c.mu.Lock()
		defer c.mu.Unlock()

		if !s.refused.Load() {
			delete(c.subscriptions, s)
		}
	})

	return true
}

// declare declares the topology of a topic once for each connection, over a channel of its own.
func (c *Consumer) declare(link *connection.Link, queue Queue) error {
	var channel reused
	defer channel.close()

	return c.declareOver(&channel, link, queue)
}

func (c *Consumer) declareOver(channel *reused, link *connection.Link, queue Queue) error {
	if queue.Declare == nil && queue.DeclareApart == nil {
		return nil
	}

	used := c.queues.use(&queue)
	defer used.leave()

	return used.declaration.DeclareHere(context.Background(), link, time.Time{}, func() error {
		return queue.declare(link, channel)
	})
}

// Initialize declares the topology of a queue. It gives up at the end of ctx, at Close, and with a
// NoAnswerError when the broker has not answered for declareTimeout.
func (c *Consumer) Initialize(ctx context.Context, queue Queue) error {
	ctx, cancel := until(ctx, c.closing)
	defer cancel()
	link, err := c.tryLink(ctx)
	if err != nil {
		return err
	}

	// In a goroutine of its own: a call that the broker does not answer lasts as long as the
	// connection.
	result := make(chan error, 1)
	go func() { result <- c.initialize(link, queue) }()

	timeout := time.NewTimer(declareTimeout)
	defer timeout.Stop()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timeout.C:
		return c.noAnswer(queue.Name, declareTimeout)
	}
}

// initialize declares, and remembers that for the subscription to come.
func (c *Consumer) initialize(link *connection.Link, queue Queue) error {
	used := c.queues.use(&queue)
	if err := c.declare(link, queue); err != nil {
		used.leave()
		return err
	}
	used.keep()

	return nil
}

// Close stops consuming, lets what is handed out finish and be settled, and closes the connection
// unless other consumers share it. It returns when all is done, at CloseTimeout at the latest. It
// is safe to call it again, and at the same time.
func (c *Consumer) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.done

		return nil
	}
	c.closed = true
	close(c.closing)
	open := make([]*subscription, 0, len(c.subscriptions))
	for s := range c.subscriptions {
		open = append(open, s)
	}
	c.mu.Unlock()
	defer close(c.done)

	deadline := time.Now().Add(c.settings.CloseTimeout)
	for _, s := range open {
		s.close(deadline)
	}
	waitForAll := func(deadline time.Time) {
		connection.WaitUntil(deadline, func() {
			for _, s := range open {
				<-s.done
			}
		})
	}
	waitForAll(deadline.Add(closeGrace))
	// A write that the broker did not take ends with the connection. Where others share that,
	// nothing is lost either: the channel closes when the broker answers.
	c.settings.Shared.leave(c.base, latest(deadline, time.Now()).Add(closeGrace))
	waitForAll(time.Now().Add(closeGrace))

	return nil
}

func (c *Consumer) noAnswer(queue string, after time.Duration) error {
	return &topology.NoAnswerError{Queue: queue, VirtualHost: c.settings.Connection.VirtualHost(), For: after}
}

// closeGrace is what closing a channel or a connection may take when the handlers have used up the
// time.
const closeGrace = time.Second

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}

	return b
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}

	return b
}

// isClosing reports whether a shutdown explains the error.
func isClosing(err error) bool {
	return errors.Is(err, connection.ErrClosed) || errors.Is(err, context.Canceled) || errors.Is(err, publish.ErrGone)
}

// Shared lets consumers share one connection. The first consumer opens it, and the last one closes
// it; then the next one opens another. The zero value is ready to use.
type Shared struct {
	mu   sync.Mutex
	base *base // nil while there is no consumer
}

// base is a connection, with what its consumers know of their queues.
type base struct {
	connection *connection.Connection
	queues     consumed

	consumers int // guarded by Shared.mu
}

func newBase(settings connection.Settings, logger watermill.LoggerAdapter) *base {
	return &base{
		connection: connection.New(settings, logger),
		queues:     consumed{queues: map[string]*consumedQueue{}},
	}
}

// enter returns the connection for one more consumer, which ends with leave. With s nil it is that
// consumer's own.
func (s *Shared) enter(settings connection.Settings, logger watermill.LoggerAdapter) *base {
	if s == nil {
		return newBase(settings, logger)
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.base == nil {
		s.base = newBase(settings, logger)
	}
	s.base.consumers++

	return s.base
}

// leave closes the connection if no other consumer has it, at the deadline at the latest.
func (s *Shared) leave(b *base, deadline time.Time) {
	if s.isLast(b) {
		b.connection.Close(deadline)
	}
}

func (s *Shared) isLast(b *base) bool {
	if s == nil {
		return true
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if b.consumers--; b.consumers > 0 {
		return false
	}
	s.base = nil // whoever comes now must not get one that is closing

	return true
}
