// Package observe reads how many messages queues have.
package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/retry"
)

// Observer looks at queues, over a connection of its own that is opened when it is first asked: in
// an alarm, which is when somebody looks, the broker does not listen to the connection of whoever
// publishes, and an answer that is slow must not hold up acknowledgements.
type Observer struct {
	connection *connection.Connection
	turn       chan struct{} // one look at a time: a broker that does not answer is not asked again and again
}

// NewObserver returns an observer that is not connected yet.
func NewObserver(settings connection.Settings, logger watermill.LoggerAdapter) *Observer {
	return &Observer{connection: connection.New(settings, logger), turn: make(chan struct{}, 1)}
}

// Close closes the connection. It returns at the deadline at the latest.
func (o *Observer) Close(deadline time.Time) { o.connection.Close(deadline) }

// QueueDepths returns how many messages are ready in queues, sorted by name. With an error, such as
// for a missing queue, it returns what could be found out. It returns at the end of ctx at the
// latest.
func (o *Observer) QueueDepths(ctx context.Context, queues map[string]retry.QueueDepth) ([]retry.QueueDepth, error) {
	// In time for some only, it is the dead letters that count most. A ladder has many queues,
	// which come last.
	asked := slices.SortedFunc(maps.Values(queues), func(a, b retry.QueueDepth) int {
		return cmp.Or(cmp.Compare(rank(a.Role), rank(b.Role)), cmp.Compare(a.Queue, b.Queue))
	})
	select {
	case o.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot read queue depths while the previous request has no answer: %w",
			context.Cause(ctx))
	}

	found, answer := make(chan retry.QueueDepth, len(asked)), make(chan error, 1)
	go func() {
		defer func() { <-o.turn }()
		answer <- o.look(ctx, asked, found)
	}()
	var err error
	select {
	case err = <-answer:
	case <-ctx.Done():
		err = fmt.Errorf("no answer about queues: %w", context.Cause(ctx))
	}
	var depths []retry.QueueDepth
	for range len(found) {
		depths = append(depths, <-found)
	}
	slices.SortFunc(depths, func(a, b retry.QueueDepth) int { return cmp.Compare(a.Queue, b.Queue) })

	return depths, err
}

func rank(role retry.QueueRole) int {
	switch role {
	case retry.QueueRoleDeadLetter, retry.QueueRoleUnroutable, retry.QueueRoleFailed:
		return 0
	case retry.QueueRoleRetry:
		return 1
	default:
		return 2
	}
}

// depth asks a second time after a 0: RabbitMQ says that as well when a quorum queue has not
// answered it within 250 ms.
func depth(channel *amqp091.Channel, queue string) (int, error) {
	for range 2 {
		q, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil || q.Messages > 0 {
			return q.Messages, err
		}
	}

	return 0, nil
}

// look asks for queues in their order, and sends what it finds.
func (o *Observer) look(ctx context.Context, queues []retry.QueueDepth, found chan<- retry.QueueDepth) error {
	link, err := o.connection.TryLink(ctx)
	if err != nil {
		return err
	}

	var (
		channel *amqp091.Channel
		errs    []error
	)
	for _, queue := range queues {
		if ctx.Err() != nil { // nobody waits for it any more
			errs = append(errs, context.Cause(ctx))
			break
		}
		if channel == nil || channel.IsClosed() { // a queue that is missing has closed it
			if channel, err = link.Channel(); err != nil {
				errs = append(errs, fmt.Errorf("cannot open a channel: %w", err))
				break
			}
		}
		if queue.Messages, err = depth(channel, queue.Queue); err != nil {
			errs = append(errs, fmt.Errorf("cannot read the depth of queue %q: %w", queue.Queue,
				topology.Explain(rabbitmq.UseLook, rabbitmq.KindQueue, queue.Queue, err)))
			continue
		}
		found <- queue
	}
	if channel != nil {
		_ = channel.Close()
	}

	return errors.Join(errs...)
}

// QueuesOf are the queues beside the main queues, by name.
func QueuesOf(plans []topology.Plan) map[string]retry.QueueDepth {
	queues, ladders := map[string]retry.QueueDepth{}, map[string]bool{}
	for _, plan := range plans {
		for _, q := range plan.Queues {
			if q.Landing {
				continue // AMQP says that it is empty, whatever it holds
			}
			depth := retry.QueueDepth{Queue: q.Name, Role: retry.QueueRoleRetry, MainQueue: plan.Queue, Wait: q.Delay}
			if q.Name == plan.DeadLetterQueue {
				depth.Role = retry.QueueRoleDeadLetter
			}
			if q.Shared {
				depth.MainQueue = ""
			}
			queues[q.Name] = depth
		}
		if plan.Ladder != nil && !ladders[plan.Ladder.Name()] {
			ladders[plan.Ladder.Name()] = true
			for _, q := range plan.Ladder.Shared().Queues {
				depth := retry.QueueDepth{Queue: q.Name, Role: retry.QueueRoleDelay, Wait: plan.Ladder.Remaining(q)}
				if q.Delay == 0 {
					depth.Role = retry.QueueRoleUnroutable
				}
				queues[q.Name] = depth
			}
		}
	}

	return queues
}
