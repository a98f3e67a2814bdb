package retrier

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/consumer"
	"github.com/amqpretry/watermill-retry/retry"
)

// DeadLetterSubscriber feeds handlers from dead-letter queues. Package amqpretry says how.
type DeadLetterSubscriber struct {
	retrier  *Retrier
	group    string // empty for the queues of the config
	consumer *consumer.Consumer
}

// NewDeadLetterSubscriber connects and returns a subscriber to dead letters. Retrier.Close closes it if it is still
// open.
func (r *Retrier) NewDeadLetterSubscriber() (*DeadLetterSubscriber, error) {
	consumer, err := r.consumer("dead-letter subscriber", r.deadLetterPrefetch(), nil)
	if err != nil {
		return nil, err
	}

	return &DeadLetterSubscriber{retrier: r, consumer: consumer}, nil
}

// deadLetterPrefetch is that of a subscriber to dead letters: what it has set aside after a failure takes one each, so
// one that is fixed has to be larger.
func (r *Retrier) deadLetterPrefetch() int {
	if prefetch := r.prefetch(); prefetch > 0 {
		return max(prefetch, DefaultPrefetch)
	}

	return 0
}

// Subscribe consumes from the dead-letter queue of a topic's main queue.
func (s *DeadLetterSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	queue, err := s.retrier.deadLetters(s.group, topic)
	if err != nil {
		return nil, err
	}

	messages, err := s.consumer.Subscribe(ctx, *queue)
	if err != nil {
		queue.Ended()
		return nil, err
	}

	return messages, nil
}

// SubscribeInitialize declares the dead-letter queue of a topic.
func (s *DeadLetterSubscriber) SubscribeInitialize(topic string) error {
	queue, err := s.retrier.deadLetters(s.group, topic)
	if err != nil {
		return err
	}

	err = s.consumer.Initialize(s.retrier.ctx, *queue)
	s.retrier.registry.leaveLetters(queue.Plan, err == nil)

	return err
}

// Close stops consuming and waits until what was handed out is settled.
func (s *DeadLetterSubscriber) Close() error { return s.retrier.release(s.consumer) }

// deadLetters is the queue of a topic's dead letters, for a group if there is one. It is used until its Ended is called.
func (r *Retrier) deadLetters(group, topic string) (*consumer.Queue, error) {
	main, err := r.mainOf(group, topic)
	if err != nil {
		return nil, err
	}
	plan, err := topology.New(main.Queue, onlyDeadLetters, r.options.Names)
	if err != nil {
		return nil, main.explain(err)
	}

	r.registry.addLetters(plan)
	queue := &consumer.Queue{
		Topic: topic, Name: plan.DeadLetterQueue, DeadLettersOf: main.Queue, Plan: plan,
		Policy: config.Policy{Mode: config.ModeOff}.WithDefaults(), Names: r.options.Names,
		Ended: func() { r.registry.leaveLetters(plan, false) },
	}
	if r.options.Topology == topology.Declare {
		queue.Declare = func(channel *amqp091.Channel, _ string) error {
			if err := plan.Declare(channel); err != nil {
				return fmt.Errorf("cannot declare the dead-letter queue of topic %q: %w", topic, err)
			}
			r.options.Logger.Debug("Dead-letter queue declared",
				watermill.LogFields{"topic": topic, "amqp_queue_name": queue.Name})
			r.engine.Emit(retry.Event{
				Kind: retry.EventTopologyDeclared, Topic: topic, Queue: queue.Name, DeadLetters: true,
			})

			return nil
		}
	}

	return queue, nil
}

// onlyDeadLetters is a policy under which a topic has a dead-letter queue and nothing else.
var onlyDeadLetters = config.Policy{Mode: config.ModeDeadLetter, Strategy: config.StrategyShared}
