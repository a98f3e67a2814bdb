package amqpretry

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/internal/retrier"
)

// Subscriber is the retrier's own consumer: a message.Subscriber and message.SubscribeInitializer with a connection of
// its own that comes back by itself.
//
// It hands out as many messages of a subscription at a time as Options.Concurrency says, acknowledges in batches,
// settles the verdicts of the middleware, and closes gracefully: no message is handed out any more, handlers finish,
// copies are confirmed, everything is acknowledged.
type Subscriber struct{ own *retrier.Subscriber }

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// NewSubscriber connects and returns a subscriber. Retrier.Close closes it if it is still open.
func (r *Retrier) NewSubscriber() (*Subscriber, error) {
	own, err := r.retrier.NewSubscriber()
	if err != nil {
		return nil, err
	}

	return &Subscriber{own}, nil
}

// Subscribe declares the topology of a topic and consumes from its queue, until ctx ends or the subscriber is closed.
//
// It fails with a *topology.ConflictError or a *topology.AccessError where the broker refuses a declaration, with a
// *topology.ExclusiveError where somebody else has the queue for himself, with a *topology.SharedQueueError where two topics share a queue
// under different policies, and with a *topology.NoAnswerError where the broker has not answered for 30 seconds, such
// as for a quorum queue without leader. The name of the queue is generated once.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return s.own.Subscribe(ctx, topic)
}

// SubscribeInitialize declares the topology of a topic, so that messages published before Subscribe are kept.
//
// Watermill gives it no context. It ends with Subscriber.Close and Retrier.Close, with an error that is ErrClosed, and
// with a
// *topology.NoAnswerError when the broker has not answered for 2 minutes.
func (s *Subscriber) SubscribeInitialize(topic string) error { return s.own.SubscribeInitialize(topic) }

// Close stops consuming and waits until what was handed out is settled, for CloseTimeout at the longest. Messages
// that are not done then go back to their queue. It is safe to call it again, and at the same time.
func (s *Subscriber) Close() error { return s.own.Close() }

// String names the subscriber for Watermill, which writes that on messages and metrics: the same for all versions of
// watermill-amqp.
func (s *Subscriber) String() string { return s.own.String() }

// Format prints what it is, under any verb: it has the password of the broker's user in it.
func (s *Subscriber) Format(f fmt.State, verb rune) { s.own.Format(f, verb) }

// DeadLetterSubscriber feeds handlers from dead-letter queues: for an alarm that looks into the message, an archive, a
// repair.
//
// A handler finds in retry.DeadLetterFromContext why its message has failed, and in the message what its own handler
// would have seen: its payload and metadata, with Watermill's four poison keys; what cannot be decoded comes as it is.
//
// A success takes the dead letter out of the queue for good. A failure leaves it there, whatever the error says: it is
// handed out again after a pause of 1s, 2s, 4s, up to 1m, and for ever, as there is no further queue for it to go to.
// Those behind it go on, while no more than 1,000 wait for their pause. The prefetch is that of the Subscriber, but at
// least 50. The retry middleware decides nothing about these messages, but tells why their handler has failed.
type DeadLetterSubscriber struct{ own *retrier.DeadLetterSubscriber }

var (
	_ message.Subscriber           = (*DeadLetterSubscriber)(nil)
	_ message.SubscribeInitializer = (*DeadLetterSubscriber)(nil)
)

// NewDeadLetterSubscriber connects and returns a subscriber to dead letters. Retrier.Close closes it if it is still
// open.
func (r *Retrier) NewDeadLetterSubscriber() (*DeadLetterSubscriber, error) {
	own, err := r.retrier.NewDeadLetterSubscriber()
	if err != nil {
		return nil, err
	}

	return &DeadLetterSubscriber{own}, nil
}

// Subscribe consumes from the dead-letter queue of a topic's main queue, until ctx ends or the subscriber is closed. It
// declares that queue and nothing else. The topic is that of the messages, whatever its policy is; nobody needs to be
// subscribed to it.
func (s *DeadLetterSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return s.own.Subscribe(ctx, topic)
}

// SubscribeInitialize declares the dead-letter queue of a topic. It ends as Subscriber.SubscribeInitialize does.
func (s *DeadLetterSubscriber) SubscribeInitialize(topic string) error {
	return s.own.SubscribeInitialize(topic)
}

// Close stops consuming and waits until what was handed out is settled, for CloseTimeout at the longest. Messages
// that are not done then go back to their queue. It is safe to call it again, and at the same time.
func (s *DeadLetterSubscriber) Close() error { return s.own.Close() }

// String names the subscriber for Watermill.
func (s *DeadLetterSubscriber) String() string { return s.own.String() }

// Format prints what it is, under any verb: it has the password of the broker's user in it.
func (s *DeadLetterSubscriber) Format(f fmt.State, verb rune) { s.own.Format(f, verb) }
