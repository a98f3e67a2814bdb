package publish

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// notices tell a run of the tools what has become of the messages that it has replayed to see that.
// They are for whoever waits just now: not confirmed, not kept, and given up rather than waited
// for, so that they hold up nothing. A run that is told nothing says so.
type notices struct {
	connection *connection.Connection
	logger     watermill.LoggerAdapter

	start   sync.Once
	queue   chan wire.Notice
	waiting atomic.Int64 // not sent yet
	full    sync.Once
	ctx     context.Context
}

const (
	// mostNotices wait at the most.
	mostNotices = 256
	// noticeTime is how long one may take to be sent, and how long the broker keeps one that nobody
	// takes.
	noticeTime = 10 * time.Second
	// lastNotices is how long a close waits for those that are not sent yet.
	lastNotices = time.Second
)

func newNotices(ctx context.Context, connection *connection.Connection, logger watermill.LoggerAdapter) *notices {
	return &notices{connection: connection, logger: logger, queue: make(chan wire.Notice, mostNotices), ctx: ctx}
}

// report sends a notice soon, if the message is such a one at all. published is the state of its
// copy, if there is one.
func (n *notices) report(canary string, outcome wire.Outcome, published *wire.State) {
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
	n.waiting.Add(1)
	select {
	case n.queue <- notice:
	default:
		n.waiting.Add(-1)
		n.full.Do(func() {
			n.logger.Error("Cannot report results to the replay command", errTooManyNotices,
				watermill.LogFields{"amqp_queue_name": notice.Queue})
		})
	}
}

var errTooManyNotices = errors.New("too many results are waiting to be sent")

// flush gives what waits a moment to be sent, before the forwarder closes.
func (n *notices) flush(deadline time.Time) {
	if limit := time.Now().Add(lastNotices); limit.Before(deadline) {
		deadline = limit
	}
	for n.waiting.Load() > 0 && time.Now().Before(deadline) {
		<-time.After(time.Millisecond)
	}
}

// run ends with the forwarder.
func (n *notices) run() {
	for {
		select {
		case notice := <-n.queue:
			if err := n.send(notice); err != nil && n.ctx.Err() == nil {
				n.logger.Error("Cannot report the result to the replay command", err, nil)
			}
			n.waiting.Add(-1)
		case <-n.ctx.Done():
			return
		}
	}
}

func (n *notices) send(notice wire.Notice) error {
	ctx, cancel := context.WithTimeout(n.ctx, noticeTime)
	defer cancel()
	link, err := n.connection.TryLink(ctx)
	if err != nil {
		return err
	}
	if err := link.WaitUnblocked(ctx); err != nil {
		return err
	}

	return link.OnChannel(func(channel *amqp091.Channel) error {
		return publishTo(ctx, channel, notice.Queue, amqp091.Publishing{
			Headers: notice.Headers(), Expiration: "10000", DeliveryMode: amqp091.Transient,
		})
	})
}

// OutcomeOf is what has become of a message whose copy the broker has confirmed.
func OutcomeOf(published *wire.State, postponed bool) wire.Outcome {
	switch {
	case published.Count == header.CountDead:
		return wire.DeadLettered
	case postponed:
		return wire.Postponed
	default:
		return wire.Retried
	}
}
