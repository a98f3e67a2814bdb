package connection

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/retry"
)

// Link is one live AMQP connection.
type Link struct {
	*amqp091.Connection

	socket *timedConn
	writes *held
	reads  *codec.ReadableConn
	noted  atomic.Int64 // returns that their channels know of
	logger watermill.LoggerAdapter
	emit   func(kind retry.EventKind, err error)

	closes chan *amqp091.Error
	blocks chan amqp091.Blocking

	opened time.Time
	dead   chan struct{} // closed when the connection is gone

	lostAt time.Time // read after dead
	lost   error

	expire  sync.Once // gives the connection up
	expired atomic.Pointer[amqp091.Error]
	unsure  *seldom // of the Connection

	mu        sync.Mutex
	unblocked chan struct{} // closed unless the broker has blocked the connection
	reason    string        // for which it has
	since     time.Time     // when it has
}

// Received is how many bytes have come from the broker: where it grows, something is on its way.
func (l *Link) Received() int64 { return l.socket.received.Load() }

// Sent is how many bytes have gone to the broker: while it grows, the broker takes what is written.
func (l *Link) Sent() int64 { return l.socket.sent.Load() }

// NoteReturn is called when a channel knows of a publish that came back, once for each.
func (l *Link) NoteReturn() { l.noted.Add(1) }

// HasUnnoted tells whether more messages have arrived than came back and were noted: for a
// connection on which nobody consumes.
func (l *Link) HasUnnoted() bool { return l.reads == nil || l.reads.Contents() != l.noted.Load() }

// Hold holds back what is written, up to 16 KiB, until all who have called it call Release. Nobody
// may wait for an answer of the broker in between.
func (l *Link) Hold() { l.writes.hold() }

// Release is called once for each Hold.
func (l *Link) Release() { l.writes.release() }

func newLink(
	connection *amqp091.Connection, socket *timedConn, logger watermill.LoggerAdapter,
	emit func(retry.EventKind, error), unsure *seldom,
) *Link {
	open := make(chan struct{})
	close(open)

	return &Link{
		Connection: connection,
		socket:     socket,
		logger:     logger,
		emit:       emit,
		closes:     connection.NotifyClose(make(chan *amqp091.Error, 1)),
		blocks:     connection.NotifyBlocked(make(chan amqp091.Blocking, 8)),
		opened:     time.Now(),
		dead:       make(chan struct{}),
		unblocked:  open,
		unsure:     unsure,
	}
}

// watch follows the connection until it is gone.
func (l *Link) watch() {
	defer close(l.dead)
	defer func() {
		if l.IsBlocked() { // no alarm blocks what is not there
			l.emit(retry.EventUnblocked, nil)
		}
	}()

	for {
		select {
		case reason, ok := <-l.closes:
			if !ok || reason == nil {
				reason = l.expired.Load()
			}
			if reason != nil {
				err := error(reason)
				l.lostAt, l.lost = time.Now(), err
				l.logger.Error("Connection to RabbitMQ lost", err, nil)
				l.emit(retry.EventDisconnected, err)
			}

			return
		case b, ok := <-l.blocks:
			if !ok {
				l.blocks = nil
				continue
			}
			l.setBlocked(b)
		}
	}
}

// setBlocked follows the alarms of the broker, which repeats itself.
func (l *Link) setBlocked(b amqp091.Blocking) {
	switch changed := l.block(b.Active, b.Reason); {
	case !changed:
	case b.Active:
		l.logger.Error("RabbitMQ blocked the connection; publishing waits until it unblocks it", nil,
			watermill.LogFields{"reason": b.Reason})
		l.emit(retry.EventBlocked, fmt.Errorf("blocked by the broker: %s", b.Reason))
	default:
		l.logger.Info("RabbitMQ unblocked the connection", nil)
		l.emit(retry.EventUnblocked, nil)
	}
}

func (l *Link) block(active bool, reason string) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.reason = reason
	select {
	case <-l.unblocked:
		if active {
			l.unblocked, l.since = make(chan struct{}), time.Now()
		}

		return active
	default:
		if !active {
			close(l.unblocked)
		}

		return !active
	}
}

// Opened is when the connection was opened.
func (l *Link) Opened() time.Time { return l.opened }

// Lost tells when the connection was lost, and why; nil if it is there, or was closed by ourselves.
func (l *Link) Lost() (at time.Time, err error) {
	if l.IsAlive() {
		return time.Time{}, nil
	}
	<-l.dead // it is about to be

	return l.lostAt, l.lost
}

// AwaitEnd waits until the connection is gone, or ctx ends.
func (l *Link) AwaitEnd(ctx context.Context) {
	select {
	case <-l.dead:
	case <-ctx.Done():
	}
}

// IsAlive tells whether the connection is there, as far as is known.
func (l *Link) IsAlive() bool {
	select {
	case <-l.dead:
		return false
	default:
		return !l.IsClosed()
	}
}

// IsBlocked tells whether the broker has blocked the connection.
func (l *Link) IsBlocked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	select {
	case <-l.unblocked:
		return false
	default:
		return true
	}
}

// BlockedFor is the reason for which the broker has blocked the connection, in its words.
func (l *Link) BlockedFor() string {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.reason
}

// blockedSince is when the broker has blocked the connection last.
func (l *Link) blockedSince() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.since
}

// WaitUnblocked waits while the broker blocks the connection (a memory or disk alarm). A publish
// now would sit in the socket, unresolved, and arrive at some later time.
func (l *Link) WaitUnblocked(ctx context.Context) error {
	l.mu.Lock()
	unblocked := l.unblocked
	l.mu.Unlock()

	select {
	case <-unblocked:
		return nil
	default:
	}

	select {
	case <-unblocked:
		return nil
	case <-l.dead:
		return amqp091.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Channel opens a channel. Its error is amqp091.ErrChannelMax if there is none left.
func (l *Link) Channel() (*amqp091.Channel, error) {
	channel, err := l.Connection.Channel()
	if errors.Is(err, amqp091.ErrChannelMax) {
		return nil, fmt.Errorf("all %d channels of the connection are in use; end subscriptions that are not needed, "+
			"spread them over several subscribers and retriers, or raise channel_max, the broker's and that of "+
			"Config.Connection.AmqpConfig (%w)", l.Config.ChannelMax, err)
	}
	if err == nil {
		go l.watchAccess(channel.NotifyClose(make(chan *amqp091.Error, 1)))
	}

	return channel, err
}

// OnChannel calls do with a channel of its own, as the broker closes it at the first error.
func (l *Link) OnChannel(do func(*amqp091.Channel) error) error {
	channel, err := l.Channel()
	if err != nil {
		return fmt.Errorf("cannot open a channel: %w", err)
	}
	defer channel.Close() // fails after an error of the broker

	return do(channel)
}

// FrameSize is the negotiated frame size; zero means no limit.
func (l *Link) FrameSize() int { return l.Config.FrameSize }

// Version is the broker's, such as 4.0.5; empty when it does not say.
func (l *Link) Version() string {
	version, _ := l.Properties["version"].(string)
	return version
}

// Abandon closes the connection's socket: for a broker that does not answer any more, and takes
// back what it has delivered.
func (l *Link) Abandon() { _ = l.socket.Close() }

// close closes the connection, politely until the deadline and then by its socket.
func (l *Link) close(deadline time.Time) {
	if WaitUntil(deadline, func() { _ = l.CloseDeadline(deadline) }) {
		return
	}

	_ = l.socket.Close()
}
