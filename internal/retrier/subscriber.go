package retrier

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/consumer"
)

// Subscriber is the retrier's own consumer. Package amqpretry says what it does.
type Subscriber struct {
	retrier  *Retrier
	group    string // empty for the queues of the config
	consumer *consumer.Consumer
}

// NewSubscriber connects and returns a subscriber. Retrier.Close closes it if it is still open.
func (r *Retrier) NewSubscriber() (*Subscriber, error) {
	consumer, err := r.consumer("subscriber", r.prefetch(), nil)
	if err != nil {
		return nil, err
	}

	return &Subscriber{retrier: r, consumer: consumer}, nil
}

// consumer connects, over a shared connection or, with nil, over one of its own. Retrier.Close closes it if it is still
// open.
func (r *Retrier) consumer(role string, prefetch int, shared *consumer.Shared) (*consumer.Consumer, error) {
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

	r.mu.Lock()
	defer r.mu.Unlock()

	if r.ctx.Err() != nil {
		err := context.Cause(r.ctx)
		go func() { _ = consumer.Close() }() // it has no subscription yet, but closing still asks the broker

		return nil, err
	}
	r.consumers[consumer] = struct{}{}

	return consumer, nil
}

// release closes a consumer.
func (r *Retrier) release(c *consumer.Consumer) error {
	err := c.Close()

	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.consumers, c)

	return err
}

// Subscribe declares the topology of a topic and consumes from its queue.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	main, err := s.retrier.mainOf(s.group, topic)
	if err != nil {
		return nil, err
	}
	queue, err := s.retrier.queue(main)
	if err != nil {
		return nil, err
	}
	queue.Ended = func() { s.retrier.leave(main) }

	messages, err := s.consumer.Subscribe(ctx, *queue)
	if err != nil {
		queue.Ended()
		return nil, err
	}

	return messages, nil
}

// SubscribeInitialize declares the topology of a topic.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	main, err := s.retrier.mainOf(s.group, topic)
	if err != nil {
		return err
	}
	queue, err := s.retrier.queue(main)
	if err != nil {
		return err
	}
	if err := s.consumer.Initialize(s.retrier.ctx, *queue); err != nil {
		s.retrier.leave(main)
		return err
	}
	s.retrier.registry.keep(main)

	return nil
}

// Close stops consuming and waits until what was handed out is settled.
func (s *Subscriber) Close() error { return s.retrier.release(s.consumer) }
