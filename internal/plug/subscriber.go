package plug

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/internal/transport"
)

// Subscriber is the plug's own consumer: a message.Subscriber with a connection of its own that comes back by itself.
//
// It hands out as many messages of a subscription at a time as Options.Concurrency says, acknowledges in batches, settles
// the verdicts of the middleware, and closes gracefully: no message is handed out any more, handlers finish, copies are
// confirmed, everything is acknowledged.
type Subscriber struct {
	plug     *Plug
	consumer *transport.Consumer
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// NewSubscriber connects and returns a subscriber. Plug.Close closes it if it is still open.
func (p *Plug) NewSubscriber() (*Subscriber, error) {
	consumer, err := p.consumer("subscriber", p.prefetch())
	if err != nil {
		return nil, err
	}

	return &Subscriber{plug: p, consumer: consumer}, nil
}

// consumer connects. Plug.Close closes it if it is still open.
func (p *Plug) consumer(role string, prefetch int) (*transport.Consumer, error) {
	consume := p.config.Consume

	consumer, err := transport.NewConsumer(p.ctx, transport.ConsumerSettings{
		Connection:     p.connectionSettings(role),
		Logger:         p.options.Logger,
		Marshaler:      p.config.Marshaler,
		RedeliveredKey: p.config.RedeliveredKey,
		Owner:          p.poison.Owner,
		Judge:          p.poison,
		Concurrency:    p.options.Concurrency,
		Prefetch:       p.roomFor(prefetch),
		Consumer:       consume.Consumer,
		Exclusive:      consume.Exclusive,
		NoLocal:        consume.NoLocal,
		NoWait:         consume.NoWait,
		Arguments:      consume.Arguments,
		SingleActive:   p.config.Queue.Arguments["x-single-active-consumer"] == true,
		Turns:          &p.turns,
		CloseTimeout:   p.options.CloseTimeout,
	})
	if err != nil {
		return nil, err
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	if p.ctx.Err() != nil {
		err := context.Cause(p.ctx)
		go func() { _ = consumer.Close() }() // it has no subscription yet, but closing still asks the broker

		return nil, err
	}
	p.consumers[consumer] = struct{}{}

	return consumer, nil
}

// release closes a consumer.
func (p *Plug) release(c *transport.Consumer) error {
	err := c.Close()

	p.mu.Lock()
	defer p.mu.Unlock()

	delete(p.consumers, c)

	return err
}

// Subscribe declares the topology of a topic and consumes from its queue, until ctx ends or the subscriber is closed.
//
// It fails with a *topology.ConflictError or a *topology.AccessError where the broker refuses a declaration, with a
// *topology.ExclusiveError where somebody else has the queue for himself, and with a *SharedQueueError where two topics share a queue
// under different policies. The name of the queue is generated once.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	main := s.plug.main(topic)
	source, err := s.plug.source(main)
	if err != nil {
		return nil, err
	}
	source.Ended = func() { s.plug.leave(main) }

	messages, err := s.consumer.Subscribe(ctx, *source)
	if err != nil {
		source.Ended()
		return nil, err
	}

	return messages, nil
}

// SubscribeInitialize declares the topology of a topic, so that messages published before Subscribe are kept.
//
// Watermill gives it no context. It ends with Subscriber.Close and Plug.Close, with an error that is ErrClosed, and with a
// NoAnswerError when the broker has not answered for 2 minutes.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	main := s.plug.main(topic)
	source, err := s.plug.source(main)
	if err != nil {
		return err
	}
	if err := s.consumer.Initialize(s.plug.ctx, *source); err != nil {
		s.plug.leave(main)
		return err
	}
	s.plug.registry.keep(main)

	return nil
}

// Close stops consuming and waits until what was handed out is settled, for CloseTimeout at the longest. What is not done
// then goes back to its queue. It is safe to call it again, and at the same time.
func (s *Subscriber) Close() error { return s.plug.release(s.consumer) }
