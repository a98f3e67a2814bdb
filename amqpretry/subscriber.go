package amqpretry

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/consumer"
)

// Subscriber is the retrier's own consumer: a message.Subscriber and message.SubscribeInitializer
// with a connection that comes back by itself.
//
// It hands out as many messages of a subscription at a time as Options.Concurrency says,
// acknowledges in batches, settles the verdicts of the middleware, and closes gracefully: no
// message is handed out any more, handlers finish, copies are confirmed, everything is
// acknowledged.
type Subscriber struct {
	retrier     *Retrier
	group       string // empty for the queues of the config
	deadLetters bool   // consumes dead-letter queues
	consumer    *consumer.Consumer
	used        atomic.Bool // a subscription has begun

	ctx   context.Context // ends when Close begins
	close context.CancelCauseFunc

	mu       sync.Mutex
	prepared map[string]*prepared // by topic
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// NewSubscriber connects and returns a subscriber. Retrier.Close closes it if it is still open.
func (r *Retrier) NewSubscriber() (*Subscriber, error) { return r.newSubscriber("", false) }

// NewDeadLetterSubscriber connects and returns a subscriber to the dead letters of topics: for an
// alarm that looks into the message, an archive, a repair. Retrier.Close closes it if it is still
// open.
//
// Subscribe consumes from the dead-letter queue of a topic's main queue. It declares that queue and
// nothing else. The topic is that of the messages, whatever its policy is; nobody needs to be
// subscribed to it.
//
// A handler finds in retry.DeadLetterFromContext why its message has failed, and in the message
// what its own handler would have seen: its payload and metadata, with Watermill's four poison
// keys; what cannot be decoded comes as it is.
//
// A success takes the dead letter out of the queue for good. A failure leaves it there, whatever
// the error says: it is handed out again after a pause of 1s, 2s, 4s, up to 1m, and for ever, as
// there is no further queue for it to go to. Those behind it go on, while no more than 1,000 wait
// for their pause. The prefetch is that of other subscribers, but at least 50. The retry middleware
// decides nothing about these messages, but tells why their handler has failed.
func (r *Retrier) NewDeadLetterSubscriber() (*Subscriber, error) { return r.newSubscriber("", true) }

// newSubscriber connects. The subscribers of all groups share one connection.
func (r *Retrier) newSubscriber(group string, deadLetters bool) (*Subscriber, error) {
	role, prefetch, shared := "subscriber", r.prefetch(), (*consumer.Shared)(nil)
	if deadLetters {
		role = "dead-letter subscriber"
		if prefetch > 0 { // what is set aside after a failure takes one each
			prefetch = max(prefetch, DefaultPrefetch)
		}
	}
	if group != "" {
		role, shared = "groups", &r.groups
	}
	consume := r.config.Consume
	_, expires := r.config.Queue.Arguments[amqp091.QueueTTLArg]

	consumer, err := consumer.New(r.ctx, consumer.Settings{
		Connection:     r.connectionSettings(role),
		Shared:         shared,
		Logger:         r.options.Logger,
		Marshaler:      r.config.Marshaler,
		RedeliveredKey: r.config.RedeliveredKey,
		Engine:         r.engine,
		Concurrency:    r.options.Concurrency,
		Prefetch:       prefetch,
		Consumer:       consume.Consumer,
		Exclusive:      consume.Exclusive,
		NoLocal:        consume.NoLocal,
		NoWait:         consume.NoWait,
		Arguments:      consume.Arguments,
		SingleActive:   r.config.Queue.Arguments["x-single-active-consumer"] == true,
		Expires:        expires,
		Turns:          &r.turns,
		CloseTimeout:   r.options.CloseTimeout,
	})
	if err != nil {
		return nil, err
	}

	s := &Subscriber{retrier: r, group: group, deadLetters: deadLetters, consumer: consumer,
		prepared: map[string]*prepared{}}
	s.ctx, s.close = context.WithCancelCause(r.ctx)
	if err := r.opened(s); err != nil {
		go func() { _ = consumer.Close() }() // it has no subscription yet, but closing still asks the broker
		return nil, err
	}

	return s, nil
}

// Subscribe declares the topology of a topic and consumes from its queue, until ctx ends or the
// subscriber is closed.
//
// It fails with a *topology.ConflictError or a *topology.AccessError where the broker refuses a
// declaration, with a *topology.ExclusiveError where somebody else has the queue for himself, with
// a *topology.SharedQueueError where two topics share a queue under different policies, and with a
// *topology.NoAnswerError where the broker has not answered for 30 seconds, such as for a quorum
// queue without leader. The name of the queue is generated once.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	var queue *consumer.Queue
	if p := s.take(topic); p != nil {
		queue = p.queue
		defer p.forget()
	} else if other, _, err := s.queue(topic); err != nil {
		return nil, err
	} else {
		queue = other
	}

	messages, err := s.consumer.Subscribe(ctx, *queue)
	if err != nil {
		queue.Ended()
		return nil, err
	}
	s.used.Store(true)

	return messages, nil
}

// SubscribeInitialize declares the topology of a topic, so that messages published before Subscribe
// are kept.
//
// Watermill gives it no context. It ends with Subscriber.Close and Retrier.Close, with an error
// that is ErrClosed, and with a *topology.NoAnswerError when the broker has not answered for 2
// minutes.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	queue, keep, err := s.queue(topic)
	if err != nil {
		return err
	}
	if err := s.consumer.Initialize(s.retrier.ctx, *queue); err != nil {
		queue.Ended()
		return err
	}
	keep()

	return nil
}

// queue is what a topic is consumed from. It is used until its Ended is called, or with keep until
// somebody else has used it and left.
func (s *Subscriber) queue(topic string) (queue *consumer.Queue, keep func(), err error) {
	main, err := s.retrier.mainOf(s.group, topic)
	if err != nil {
		return nil, nil, err
	}
	if s.deadLetters {
		return s.retrier.deadLetters(main)
	}
	if queue, err = s.retrier.queue(main); err != nil {
		return nil, nil, err
	}
	queue.Ended = func() { s.retrier.leave(main) }

	return queue, func() { s.retrier.registry.leave(main, true) }, nil
}

// Close stops consuming and waits until what was handed out is settled, for CloseTimeout at the
// longest. Messages that are not done then go back to their queue. It is safe to call it again, and
// at the same time.
func (s *Subscriber) Close() error {
	defer s.retrier.closed(s)
	s.close(fmt.Errorf("the subscriber is %w", ErrClosed))
	s.mu.Lock()
	unused := slices.Collect(maps.Values(s.prepared))
	s.mu.Unlock()
	for _, p := range unused {
		p.drop()
	}

	return s.consumer.Close()
}

// String names the subscriber for Watermill, which writes that on messages and metrics: the same
// for all versions of watermill-amqp.
func (s *Subscriber) String() string {
	if s.deadLetters {
		return "amqpretry.DeadLetterSubscriber"
	}

	return "amqpretry.Subscriber"
}

// Format prints what it is, under any verb: it has the password of the broker's user in it.
func (s *Subscriber) Format(f fmt.State, _ rune) { format(f, "Subscriber", s) }

// stockPrefetch is what all configs of watermill-amqp say by default. A retrier cannot tell it from
// a user's own 1, and with it one held delivery stops the queue.
const stockPrefetch = 1

// prefetch is how many deliveries the broker may send ahead to the retrier's own subscriber; zero
// for as many as suits the handlers.
func (r *Retrier) prefetch() int {
	switch config := r.config.Consume.Qos.PrefetchCount; {
	case r.options.Prefetch > 0:
		return r.roomFor(r.options.Prefetch)
	case config > stockPrefetch:
		return r.roomFor(config)
	default:
		return 0
	}
}

// roomFor raises a prefetch that would limit the concurrency, and logs one without room for held
// deliveries.
func (r *Retrier) roomFor(prefetch int) int {
	fields := watermill.LogFields{"prefetch": prefetch, "concurrency": r.options.Concurrency}
	if prefetch < r.options.Concurrency {
		r.options.Logger.Info("Raised the prefetch to Options.Concurrency, which it would limit; see Options.Prefetch",
			fields)
		prefetch = r.options.Concurrency
	}
	if prefetch == r.options.Concurrency {
		r.options.Logger.Info("Prefetch equals Options.Concurrency, so each held delivery leaves a handler idle; see "+
			"Options.Prefetch", watermill.LogFields{"prefetch": prefetch, "concurrency": r.options.Concurrency})
	}

	return prefetch
}
