package plug

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/transport"
	"github.com/amqpretry/watermill-retry/middleware"
)

// DeadLetterSubscriber feeds handlers from dead-letter queues: for an alarm that looks into the message, an archive, a repair.
//
// A handler finds in middleware.DeadLetterFromContext why its message has failed, and in the message what its own handler would
// have seen: its payload and metadata, with Watermill's four poison keys; what cannot be decoded comes as it is.
//
// A success takes the dead letter out of the queue for good. A failure leaves it there, whatever the error says: it is handed out again
// after a pause of 1s, 2s, 4s, up to 1m, and for ever, as there is no further queue for it to go to. Those behind it go on, while no more
// than 1,000 wait for their pause. The prefetch is that of the Subscriber, but at least 50. The retry middleware decides nothing about
// these messages, but tells why their handler has failed.
type DeadLetterSubscriber struct {
	plug     *Plug
	consumer *transport.Consumer
}

var (
	_ message.Subscriber           = (*DeadLetterSubscriber)(nil)
	_ message.SubscribeInitializer = (*DeadLetterSubscriber)(nil)
)

// NewDeadLetterSubscriber connects and returns a subscriber to dead letters. Plug.Close closes it if it is still open.
func (p *Plug) NewDeadLetterSubscriber() (*DeadLetterSubscriber, error) {
	// What is set aside after a failure takes one each, and with none left those behind it would wait.
	consumer, err := p.consumer("dead-letter subscriber", max(p.prefetch(), DefaultPrefetch))
	if err != nil {
		return nil, err
	}

	return &DeadLetterSubscriber{plug: p, consumer: consumer}, nil
}

// Subscribe consumes from the dead-letter queue of a topic's main queue, until ctx ends or the subscriber is closed. It declares
// that queue and nothing else. The topic is that of the messages, whatever its policy is; nobody needs to be subscribed to it.
func (s *DeadLetterSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	source, err := s.plug.deadLetters(topic)
	if err != nil {
		return nil, err
	}

	messages, err := s.consumer.Subscribe(ctx, *source)
	if err != nil {
		source.Ended()
		return nil, err
	}

	return messages, nil
}

// SubscribeInitialize declares the dead-letter queue of a topic. It ends as Subscriber.SubscribeInitialize does.
func (s *DeadLetterSubscriber) SubscribeInitialize(topic string) error {
	source, err := s.plug.deadLetters(topic)
	if err != nil {
		return err
	}

	err = s.consumer.Initialize(s.plug.ctx, *source)
	s.plug.registry.leaveLetters(source.Plan, err == nil)

	return err
}

// Close stops consuming and waits until what was handed out is settled, for CloseTimeout at the longest. What is not done
// then goes back to its queue. It is safe to call it again, and at the same time.
func (s *DeadLetterSubscriber) Close() error { return s.plug.release(s.consumer) }

// deadLetters is the source of a topic's dead letters. It is used until its Ended is called.
func (p *Plug) deadLetters(topic string) (*transport.Source, error) {
	queue := p.config.Queue.GenerateName(topic)
	plan, err := topology.New(queue, onlyDeadLetters, p.options.Names)
	if err != nil {
		return nil, err
	}

	p.registry.addLetters(plan)
	source := &transport.Source{
		Topic: topic, Queue: plan.DeadLetterQueue, DeadLettersOf: queue, Plan: plan,
		Policy: config.Policy{Mode: config.ModeOff}.WithDefaults(), Names: p.options.Names,
		Ended: func() { p.registry.leaveLetters(plan, false) },
	}
	if p.options.Topology == TopologyDeclare {
		source.Declare = func(channel *amqp091.Channel, _ string) error {
			if err := plan.Declare(channel); err != nil {
				return fmt.Errorf("cannot declare the dead-letter queue of topic %q: %w", topic, err)
			}
			p.options.Logger.Debug("Dead-letter queue declared", watermill.LogFields{"topic": topic, "amqp_queue_name": source.Queue})
			p.poison.Emit(middleware.Event{
				Kind: middleware.EventTopologyDeclared, Topic: topic, Queue: source.Queue, DeadLetters: true,
			})

			return nil
		}
	}

	return source, nil
}

// onlyDeadLetters is a policy under which a topic has a dead-letter queue and nothing else.
var onlyDeadLetters = config.Policy{Mode: config.ModeDeadLetter, Scope: config.ScopeShared}
