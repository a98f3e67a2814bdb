// Package observe reads how many messages queues have.
package observe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// Observer looks at queues, over a connection of its own that is opened when it is first asked: in an alarm, which is
// when somebody looks, the broker does not listen to the connection of whoever publishes, and an answer that is slow
// must not hold up acknowledgements.
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

// Depths tells how many messages are ready in each queue, and asks in their order. With an error, such as for a missing
// queue, the map has what could be found out. It returns at the end of ctx at the latest.
func (o *Observer) Depths(ctx context.Context, queues []string) (map[string]int, error) {
	select {
	case o.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot read queue depths while the previous request has no answer: %w",
			context.Cause(ctx))
	}

	counted := &counts{depths: make(map[string]int, len(queues))}
	answer := make(chan error, 1)
	go func() {
		defer func() { <-o.turn }()
		answer <- o.look(ctx, queues, counted)
	}()

	select {
	case err := <-answer:
		return counted.all(), err
	case <-ctx.Done():
		return counted.all(), fmt.Errorf("no answer about queues: %w", context.Cause(ctx))
	}
}

// counts are the depths so far.
type counts struct {
	mu     sync.Mutex
	depths map[string]int
}

func (c *counts) add(queue string, messages int) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.depths[queue] = messages
}

func (c *counts) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return maps.Clone(c.depths)
}

// depth asks a second time after a 0: RabbitMQ says that as well when a quorum queue has not answered it within 250 ms.
func depth(channel *amqp091.Channel, queue string) (int, error) {
	for range 2 {
		q, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil || q.Messages > 0 {
			return q.Messages, err
		}
	}

	return 0, nil
}

func cannotLook(queue string, err error) error {
	return fmt.Errorf("cannot read the depth of queue %q: %w", queue,
		topology.Explain(rabbitmq.UseLook, rabbitmq.KindQueue, queue, err))
}

func (o *Observer) look(ctx context.Context, queues []string, counted *counts) error {
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
		n, err := depth(channel, queue)
		if err != nil {
			errs = append(errs, cannotLook(queue, err))
			continue
		}
		counted.add(queue, n)
	}
	if channel != nil {
		_ = channel.Close()
	}

	return errors.Join(errs...)
}
