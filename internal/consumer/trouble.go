package consumer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

// trouble is what a subscription knows of connections that its queue has cost. To consume from a
// queue, or to be delivered one of its messages, can make RabbitMQ close the connection, with the
// channels of all subscriptions on it, again and again. After several such losses in a row it
// consumes over a connection of its own. Others that were busy at the time do the same, so only
// what this connection is lost to is the queue's own doing: it is named, and tried again with
// growing pauses.
type trouble struct {
	losses int                    // in a row, each soon after something was done with the queue
	own    *connection.Connection // nil while on the one of all
}

const (
	// manyLosses are no coincidence any more.
	manyLosses = 3
	// soonAfter is how soon after a consume or a delivery the connection is lost because of it.
	soonAfter = 300 * time.Millisecond
	// carefulFor is how long a session on a connection of its own has one message at a time.
	carefulFor = time.Minute
	// wellFor is how long a session lives when its queue is no trouble any more.
	wellFor = 10 * time.Minute
	// longestTrouble is the longest pause before the queue is tried again.
	longestTrouble = time.Minute
)

// lost notes how a session has ended, or the attempt to open one: it began then, over this link,
// and something was done last with the queue. It chooses the connection for the next one, and says
// how long to wait before it at least.
func (t *trouble) lost(s *subscription, link *connection.Link, began time.Time) (wait time.Duration) {
	if link == nil {
		return 0
	}
	at, err := link.Lost()
	isOurs := isProtocol(err) && (t.isAlone() || at.Sub(s.active.at()) < soonAfter)
	if time.Since(began) > wellFor || !isOurs && err != nil && !t.isAlone() {
		t.losses = 0
	}
	if isOurs {
		t.losses++
	}

	switch {
	case t.losses < manyLosses:
		t.close()
	case !t.isAlone():
		t.own = connection.New(s.consumer.settings.Connection, s.consumer.settings.Logger)
		s.logger.Info("Consuming over a separate connection, to find out whether this queue makes RabbitMQ close it",
			watermill.LogFields{"losses": t.losses})
	case isOurs:
		wait = min(time.Second<<min(t.losses-manyLosses, 10), longestTrouble)
		s.logger.Error("RabbitMQ closes the connection that consumes from this queue; using a separate connection", err,
			watermill.LogFields{"losses": t.losses, "wait_time": wait.String()})
	}

	return wait
}

// isProtocol reports whether a connection was closed for what was done on it, and not because of an
// operator, a network or a broker that has died.
//
// Upstream: a connection that is lost ends with a frame error; rabbitmq/amqp091-go#222; amqp091-go
// 1.16; TestIsProtocol; remove when amqp091-go has an error of its own for it.
func isProtocol(err error) bool {
	var closed *amqp091.Error
	if !errors.As(err, &closed) {
		return false
	}
	switch closed.Code {
	case amqp091.ConnectionForced, amqp091.AccessRefused, amqp091.NotAllowed: // the last two of credentials
		return false
	case amqp091.FrameError: // also what amqp091-go says of a connection that has ended
		return closed.Server || closed.Reason == amqp091.ErrFrame.Reason
	default:
		return true
	}
}

// isAlone reports whether the queue has a connection of its own.
func (t *trouble) isAlone() bool { return t.own != nil }

// link is the one to consume over. Where the broker takes no further connection, it is that of all.
func (t *trouble) link(ctx context.Context, s *subscription) (*connection.Link, error) {
	if t.isAlone() {
		link, err := t.own.TryLink(ctx)
		if err == nil || ctx.Err() != nil {
			return link, err
		}
		s.logger.Error("Cannot open a separate connection; consuming over the shared one again", err, nil)
		t.close()
		t.losses = 0
	}

	return s.consumer.connection.Link(ctx)
}

// moment is a time that several goroutines use.
type moment struct{ nanos atomic.Int64 }

func (m *moment) now()          { m.nanos.Store(time.Now().UnixNano()) }
func (m *moment) at() time.Time { return time.Unix(0, m.nanos.Load()) }

// close closes the queue's own connection, if there is one.
func (t *trouble) close() {
	if t.own != nil {
		t.own.Close(time.Now().Add(closeGrace))
		t.own = nil
	}
}
