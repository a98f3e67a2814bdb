package transport

import (
	"context"
	"time"
)

// Initialize declares the topology of a source. It gives up at the end of ctx, at Close, and with a
// NoAnswerError when the broker has not answered for declareTimeout.
func (c *Consumer) Initialize(ctx context.Context, source Source) error {
	link, err := c.connection.TryLink(ctx)
	if err != nil {
		return err
	}

	// In a goroutine of its own: a call that the broker does not answer lasts as long as the connection.
	result := make(chan error, 1)
	go func() { result <- c.initialize(link, source) }()

	timeout := time.NewTimer(declareTimeout)
	defer timeout.Stop()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.closing:
		return ErrClosed
	case <-timeout.C:
		return c.noAnswer(source.Queue, declareTimeout)
	}
}

// initialize declares, and remembers that for the subscription to come.
func (c *Consumer) initialize(link *Link, source Source) error {
	used := c.queues.use(&source)
	if err := c.declare(link, source); err != nil {
		used.leave()
		return err
	}
	used.keep()

	return nil
}
