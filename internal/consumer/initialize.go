package consumer

import (
	"context"
	"time"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

// Initialize declares the topology of a queue. It gives up at the end of ctx, at Close, and with a
// NoAnswerError when the broker has not answered for declareTimeout.
func (c *Consumer) Initialize(ctx context.Context, queue Queue) error {
	ctx, cancel := c.untilClose(ctx)
	defer cancel()
	link, err := c.tryLink(ctx)
	if err != nil {
		return err
	}

	// In a goroutine of its own: a call that the broker does not answer lasts as long as the connection.
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
