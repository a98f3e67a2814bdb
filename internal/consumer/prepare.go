package consumer

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

// Preparation is a queue whose topology is declared before a consumer subscribes to it.
type Preparation struct {
	Consumer *Consumer
	Queue    *Queue
}

// preparations is how many declarations of Prepare run at a time.
const preparations = 8

// Prepare declares the topology of queues, 8 at a time, and calls ended with the index of each
// queue whose declaration has ended. It does not connect: without a connection a declaration fails.
//
// It gives up when ctx ends, and with a NoAnswerError when no declaration has ended for the time of
// patience; zero is that of Initialize. Declarations that the broker has not answered then go on,
// and a subscription waits for them.
func Prepare(ctx context.Context, patience time.Duration, all []Preparation, ended func(i int, err error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	type result struct {
		i   int
		err error
	}
	results, next := make(chan result, len(all)), atomic.Int64{}
	for range min(preparations, len(all)) {
		go func() {
			var channel reused
			defer channel.close()
			for i := int(next.Add(1)) - 1; i < len(all) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				results <- result{i, all[i].declare(&channel)}
			}
		}()
	}

	patience = cmp.Or(patience, declareTimeout)
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	isDone := make([]bool, len(all))
	for range all {
		select {
		case r := <-results:
			timeout.Reset(patience)
			isDone[r.i] = true
			ended(r.i, r.err)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timeout.C:
			for i, p := range all {
				if !isDone[i] {
					return p.Consumer.noAnswer(p.Queue.Name, patience)
				}
			}
		}
	}

	return nil
}

func (p *Preparation) declare(channel *reused) error {
	if isClosed(p.Consumer.closing) {
		return connection.ErrClosed
	}
	link := p.Consumer.connection.Live()
	if link == nil {
		return amqp091.ErrClosed
	}

	return p.Consumer.declareOver(channel, link, *p.Queue)
}

// Connect connects, unless there is a connection.
func (c *Consumer) Connect(ctx context.Context) error {
	_, err := c.tryLink(ctx)

	return err
}

// Remember keeps what is known of the declaration of a queue until forget is called.
func (c *Consumer) Remember(queue *Queue) (forget func()) { return c.queues.use(queue).leave }

// reused is a channel for one declaration after the other: opening and closing it takes as long as
// two declarations. The broker closes it when it refuses one. The zero value opens one when it is
// asked for.
type reused struct {
	link    *connection.Link
	channel *amqp091.Channel
}

func (r *reused) on(link *connection.Link) (*amqp091.Channel, error) {
	if r.channel != nil && r.link == link && !r.channel.IsClosed() {
		return r.channel, nil
	}
	r.close()
	channel, err := link.Channel()
	if err != nil {
		return nil, err
	}
	r.link, r.channel = link, channel

	return channel, nil
}

func (r *reused) close() {
	if r.channel != nil {
		_ = r.channel.Close() // fails after an error of the broker, which has closed it
	}
	r.channel = nil
}
