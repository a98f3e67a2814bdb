package transport

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/wire"
)

// notices tell a run of the tools what has become of the messages that it has replayed to see that. They are for whoever waits just now: not
// confirmed, not kept, and given up rather than waited for, so that they hold up nothing. A run that is told nothing says so.
type notices struct {
	connection *Connection
	logger     watermill.LoggerAdapter

	start sync.Once
	queue chan wire.Notice
	ctx   context.Context
}

const (
	// mostNotices wait at the most.
	mostNotices = 256
	// noticeTime is how long one may take to be sent, and how long the broker keeps one that nobody takes.
	noticeTime = 10 * time.Second
)

func newNotices(ctx context.Context, connection *Connection, logger watermill.LoggerAdapter) *notices {
	return &notices{connection: connection, logger: logger, queue: make(chan wire.Notice, mostNotices), ctx: ctx}
}

// tell sends a notice soon, if the message is such a one at all. published is the state of its copy, if there is one.
func (n *notices) tell(canary string, outcome wire.Outcome, published *wire.State) {
	if canary == "" {
		return
	}
	c, ok := wire.ReadCanary(canary)
	if !ok {
		return
	}
	notice := wire.Notice{Canary: c, Outcome: outcome}
	if published != nil {
		notice.Attempts, notice.Delay = published.Count, published.Delay
	}

	n.start.Do(func() { go n.run() })
	select {
	case n.queue <- notice:
	default:
	}
}

// run ends with the forwarder.
func (n *notices) run() {
	var channel *amqp091.Channel
	for {
		select {
		case notice := <-n.queue:
			var err error
			if channel, err = n.send(channel, notice); err != nil && n.ctx.Err() == nil {
				n.logger.Error("Cannot tell a replay what has become of its message", err, watermill.LogFields{"amqp_queue_name": notice.Queue})
			}
		case <-n.ctx.Done():
			return // with the connection, the channel goes
		}
	}
}

func (n *notices) send(channel *amqp091.Channel, notice wire.Notice) (*amqp091.Channel, error) {
	ctx, cancel := context.WithTimeout(n.ctx, noticeTime)
	defer cancel()
	link, err := n.connection.TryLink(ctx)
	if err != nil {
		return channel, err
	}
	if err := link.WaitUnblocked(ctx); err != nil {
		return channel, err
	}
	if channel == nil || channel.IsClosed() {
		if channel, err = link.Channel(); err != nil {
			return nil, err
		}
	}

	return channel, channel.PublishWithContext(ctx, "", notice.Queue, false, false, amqp091.Publishing{
		Headers: notice.Headers(), Expiration: "10000", DeliveryMode: amqp091.Transient,
	})
}

// outcomeOf is what has become of a message whose copy the broker has confirmed.
func outcomeOf(published *wire.State, postponed bool) wire.Outcome {
	switch {
	case published.Count == wire.CountDead:
		return wire.DeadLettered
	case postponed:
		return wire.Postponed
	default:
		return wire.Retried
	}
}
