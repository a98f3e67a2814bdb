package amqpretry

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/consumer"
	"github.com/amqpretry/watermill-retry/retry"
)

// deadLetters is the queue of a topic's dead letters. It is used until its Ended is called, or with
// keep until somebody else has used it and left.
func (r *Retrier) deadLetters(main mainQueue) (queue *consumer.Queue, keep func(), err error) {
	plan, err := topology.New(main.Queue, onlyDeadLetters, r.options.Names)
	if err != nil {
		return nil, nil, explain(main, err)
	}

	queue = &consumer.Queue{
		Topic: main.Topic, Name: plan.DeadLetterQueue, DeadLettersOf: main.Queue, Plan: plan,
		Policy: config.Policy{Mode: config.ModeOff}.WithDefaults(), Names: r.options.Names,
	}
	queue.Ended = func() { r.registry.leaveLetters(queue, false) }
	r.registry.addLetters(queue)
	if !r.options.AssumeTopology {
		queue.Declare = func(_ *connection.Link, channel *amqp091.Channel) error {
			if err := plan.Declare(channel); err != nil {
				return fmt.Errorf("cannot declare the dead-letter queue of topic %q: %w", main.Topic, err)
			}
			r.options.Logger.Debug("Dead-letter queue declared",
				watermill.LogFields{"topic": main.Topic, "amqp_queue_name": queue.Name})
			r.engine.Emit(retry.Event{
				Kind: retry.EventTopologyDeclared, Topic: main.Topic, Queue: queue.Name, DeadLetters: true,
			})

			return nil
		}
	}

	return queue, func() { r.registry.leaveLetters(queue, true) }, nil
}

// onlyDeadLetters is a policy under which a topic has a dead-letter queue and nothing else.
var onlyDeadLetters = config.Policy{Mode: config.ModeDeadLetter, Strategy: config.StrategyShared}
