package publish

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

const (
	// idleAfter is how long a channel stays open at least without a publish: a stock subscriber
	// never tells that a subscription has ended, and a connection has room for 2047 channels by
	// default. The next failure opens another one, which takes two round trips.
	idleAfter = time.Minute
	// mostLeaving is how many channels of a sender may be retired and not closed yet, after nacks:
	// a queue that does not answer keeps them open.
	mostLeaving = 8
	// mostAbandoned is how many publishes of a channel may have no answer that nobody waits for any
	// more.
	mostAbandoned = 256
)

// confirmChannel is a channel in confirm mode that knows which of its publishes came back as
// unroutable. It publishes to one exchange.
//
// The broker sends a return before the acknowledgement of the same publish, and amqp091-go
// dispatches both from one goroutine. A single goroutine here takes the returns, so a return is
// noted once that goroutine has answered. Nobody asks it while the connection has brought no return
// that is not noted.
type confirmChannel struct {
	*amqp091.Channel

	link     *connection.Link
	exchange string

	returns chan amqp091.Return
	closes  chan *amqp091.Error
	asked   chan struct{}

	unresolved atomic.Int64
	abandoned  atomic.Int64 // of those, the ones that nobody waits for

	// A channel that was nacked once is not used again: RabbitMQ 3.10 goes on to nack on it when
	// the queue that was full is full no more. Neither is one that was idle. It is closed when
	// nobody waits for it.
	//
	// Upstream: a channel keeps refusing for a queue that was full.
	retired atomic.Bool
	leaving *atomic.Int64 // channels of the sender that are retired, and not closed yet
	used    atomic.Bool   // since it was looked at last

	done   chan struct{} // closed when the channel is gone
	closed error         // why; read after done

	mu        sync.Mutex
	ids, keys map[string]struct{} // that came back; with a key, something has
}

// openConfirms opens a channel for publishes to an exchange.
func openConfirms(link *connection.Link, exchange string, leaving *atomic.Int64) (*confirmChannel, error) {
	channel, err := link.Channel()
	if err != nil {
		return nil, fmt.Errorf("cannot open a channel: %w", err)
	}

	c := &confirmChannel{
		Channel:  channel,
		link:     link,
		exchange: exchange,
		returns:  channel.NotifyReturn(make(chan amqp091.Return)),
		closes:   channel.NotifyClose(make(chan *amqp091.Error, 1)),
		asked:    make(chan struct{}),
		leaving:  leaving,
		done:     make(chan struct{}),
		ids:      map[string]struct{}{},
		keys:     map[string]struct{}{},
	}
	go c.watch()

	if err := channel.Confirm(false); err != nil {
		_ = channel.Close()
		return nil, fmt.Errorf("cannot switch to publisher confirms: %w", err)
	}

	return c, nil
}

func (c *confirmChannel) watch() {
	defer func() {
		if c.retired.Swap(true) {
			c.leaving.Add(-1)
		}
		close(c.done)
	}()

	idle := time.NewTicker(idleAfter)
	defer idle.Stop()

	for {
		select {
		case <-idle.C:
			if !c.used.Swap(false) && !c.isWaitedFor() {
				c.retire()
			}
		case r, ok := <-c.returns:
			if !ok {
				if err := <-c.closes; err != nil { // both are closed together, the error is sent before
					c.closed = err
				}

				return
			}
			c.note(r)
		case <-c.asked:
		}
	}
}

func (c *confirmChannel) note(r amqp091.Return) {
	id, _ := r.Headers[header.ID].(string)
	c.mu.Lock()
	c.ids[id], c.keys[r.RoutingKey] = struct{}{}, struct{}{}
	c.mu.Unlock()
	c.link.NoteReturn()
}

// noID is for those who publish what has no id. All returns with their routing key count then.
const noID = ""

// returned reports whether a publish that is resolved came back. It is asked once for each.
func (c *confirmChannel) returned(id, key string) bool {
	if c.link.HasUnnoted() {
		select {
		case c.asked <- struct{}{}: // what came before is noted
		case <-c.done:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()

	if id == noID {
		_, found := c.keys[key]
		return found
	}
	_, found := c.ids[id]
	delete(c.ids, id)

	return found
}

func (c *confirmChannel) isUsable() bool { return !c.retired.Load() && !c.IsClosed() }

func (c *confirmChannel) isWaitedFor() bool { return c.unresolved.Load() > c.abandoned.Load() }

// retire keeps the channel from being used again, and closes it as soon as nobody waits for an
// answer on it.
func (c *confirmChannel) retire() {
	if !c.retired.Swap(true) {
		c.leaving.Add(1)
	}
	c.closeIfUnused()
}

func (c *confirmChannel) closeIfUnused() {
	if c.retired.Load() && !c.isWaitedFor() { // in this order: nobody uses it after it is retired
		go c.Close() // asks the broker
	}
}

// resolved is called once for each publish, when it is resolved.
func (c *confirmChannel) resolved() {
	c.unresolved.Add(-1)
	c.closeIfUnused()
}

// isSpoiltByNack tells whether a channel that was nacked is to be left. It stays where too many
// have been left already and are still open.
func (c *confirmChannel) isSpoiltByNack() bool {
	version := c.link.Version()

	return (version == "" || rabbitmq.RefusesOn(version)) && c.leaving.Load() < mostLeaving
}

// The outcomes of a publish that is not confirmed.
var (
	ErrReturned = errors.New("the broker could not route the message to any queue")
	ErrRefused  = errors.New("the broker refused the message (nack): is a queue full, or its node down?")

	errLost = errors.New("the channel closed before the broker confirmed the message")
)

// errRetired keeps a channel from sending: another one is to be used.
var errRetired = errors.New("the channel is no longer used")

// isMissing reports whether a message was not taken because what it was published to is missing.
func isMissing(err error) bool {
	reason := reasonOf(err)

	return errors.Is(err, ErrReturned) || reason != nil && reason.Code == amqp091.NotFound
}

// reasonOf is the broker's for which a channel was closed; nil for any other error.
func reasonOf(err error) *amqp091.Error {
	var reason *amqp091.Error
	if errors.As(err, &reason) {
		return reason
	}

	return nil
}

// pending is a publish that is perhaps not resolved yet. Its answer is asked for once, or it is
// abandoned.
type pending struct {
	channel      *confirmChannel
	confirmation *amqp091.DeferredConfirmation
	id, key      string // of the message, to tell its return from others
	at           time.Time
}

// send publishes a message, mandatory.
func (c *confirmChannel) send(key string, message amqp091.Publishing, id string) (*pending, error) {
	c.unresolved.Add(1) // before it looks, so that a channel which is retired meanwhile is not closed under the publish
	c.used.Store(true)
	if !c.isUsable() {
		c.resolved()
		return nil, errRetired
	}
	at := time.Now()
	c.link.Hold()
	defer c.link.Release()
	confirmation, err := c.PublishWithDeferredConfirm(c.exchange, key, true, false, message)
	if err != nil {
		c.resolved()
		if !errors.Is(err, amqp091.ErrClosed) { // it was being written
			err = fmt.Errorf("%w: %w", errLost, err)
		}
		return nil, err
	}

	return &pending{channel: c, confirmation: confirmation, id: id, key: key, at: at}, nil
}

// wait waits for the broker's answer, and returns nil when it has confirmed the message and not
// returned it. An answer that is there counts more than the end of a context. Answered is false
// when it has not come.
func (p *pending) wait(ctx, own context.Context) (answered bool, err error) {
	select {
	case <-p.confirmation.Done():
		return true, p.answer()
	default:
	}
	select {
	case <-p.confirmation.Done():
		return true, p.answer()
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-own.Done():
		err = context.Cause(own)
	}
	p.abandon()

	return false, err
}

// isAnswered waits for the broker's answer until so long after the publish.
func (p *pending) isAnswered(patience time.Duration) bool {
	select {
	case <-p.confirmation.Done():
		return true
	default:
	}
	timer := time.NewTimer(patience - time.Since(p.at))
	defer timer.Stop()
	select {
	case <-p.confirmation.Done():
		return true
	case <-timer.C:
		return false
	}
}

// abandon gives a publish up. A channel with many that are not answered is left: the broker does
// not answer for one queue, and a close would wait for it.
func (p *pending) abandon() {
	c := p.channel
	if c.abandoned.Add(1) > mostAbandoned {
		c.retire()
	}
	c.closeIfUnused()
	go func() {
		<-p.confirmation.Done()
		c.abandoned.Add(-1)
		_ = p.answer()
	}()
}

// answer returns nil if a queue has the message. It is called once, after the answer or the end of
// the channel.
func (p *pending) answer() error {
	defer p.channel.resolved()
	returned := p.channel.returned(p.id, p.key)

	switch {
	case p.confirmation.Acked() && !returned:
		return nil
	case p.confirmation.Acked():
		return ErrReturned
	case !p.channel.IsClosed():
		if p.channel.isSpoiltByNack() {
			p.channel.retire()
		}
		return ErrRefused
	}
	<-p.channel.done // about to be closed
	if p.channel.closed == nil {
		return errLost
	}

	return fmt.Errorf("%w: %w", errLost, p.channel.closed)
}
