package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/header"
)

// idleAfter is how long a channel for copies stays open at least without a publish: a stock subscriber never tells that
// a subscription has ended, and a connection has room for 2047 channels by default. The next failure opens another one,
// which takes two round trips.
const idleAfter = time.Minute

// confirmChannel is a channel in confirm mode that knows which of its publishes came back as unroutable.
//
// The broker sends a return before the acknowledgement of the same publish, and amqp091-go dispatches both from one
// goroutine; a single goroutine here takes returns and answers questions, so a return is known when it is asked for.
// Nobody asks while the connection has brought no return that is not noted.
type confirmChannel struct {
	*amqp091.Channel

	link *connection.Link

	returns chan amqp091.Return
	closes  chan *amqp091.Error
	asked   chan question
	window  *window // nil for none

	// A channel that was nacked once is not used again: RabbitMQ 3.10 goes on to nack on it when the queue that was
	// full is full no more. Neither is one that was idle. It is closed when nobody waits for it.
	retired    atomic.Bool
	unresolved atomic.Int64
	used       atomic.Bool // since it was looked at last

	done   chan struct{} // closed when the channel is gone
	closed error         // why; read after done

	mu  sync.Mutex
	ids map[string]struct{} // that came back
}

// window bounds the publishes of a channel that are not resolved.
type window struct {
	slots     chan struct{}
	published atomic.Int64
	abandoned atomic.Int64  // nobody waits for them, and they have their slots
	leaving   *atomic.Int64 // channels of the sender that are retired, and not closed yet
}

type question struct {
	id     string
	answer chan bool
}

// reserveConfirms returns c, reserved for one publish, if c is usable and on link; else a new channel, reserved as well.
func reserveConfirms(link *connection.Link, c *confirmChannel) (*confirmChannel, error) {
	if c != nil && c.link == link && c.reserve() {
		return c, nil
	}

	c, err := openConfirms(link, nil)
	if err != nil {
		return nil, err
	}
	c.unresolved.Add(1)

	return c, nil
}

// openConfirms opens a channel, with a window if that is not nil.
func openConfirms(link *connection.Link, w *window) (*confirmChannel, error) {
	channel, err := link.Channel()
	if err != nil {
		return nil, fmt.Errorf("cannot open a channel: %w", err)
	}

	c := &confirmChannel{
		Channel: channel,
		link:    link,
		returns: channel.NotifyReturn(make(chan amqp091.Return)),
		closes:  channel.NotifyClose(make(chan *amqp091.Error, 1)),
		asked:   make(chan question),
		done:    make(chan struct{}),
		ids:     map[string]struct{}{},
		window:  w,
	}
	go c.watch()

	if err := channel.Confirm(false); err != nil {
		_ = channel.Close()
		return nil, fmt.Errorf("cannot switch to publisher confirms: %w", err)
	}

	return c, nil
}

func (c *confirmChannel) watch() {
	defer close(c.done)
	defer func() {
		if c.window != nil && c.retired.Swap(true) {
			c.window.leaving.Add(-1)
		}
	}()

	idle := time.NewTicker(idleAfter)
	defer idle.Stop()

	for {
		select {
		case <-idle.C:
			if !c.used.Swap(false) && c.unresolved.Load() == 0 {
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
		case q := <-c.asked:
			q.answer <- c.forget(q.id)
		}
	}
}

func (c *confirmChannel) note(r amqp091.Return) {
	id, _ := r.Headers[header.ID].(string)
	c.mu.Lock()
	c.ids[id], c.ids[anyReturn] = struct{}{}, struct{}{}
	c.mu.Unlock()
	c.link.NoteReturn()
}

// anyReturn stands for all returns that the channel has ever had, for those who publish what has no id.
const anyReturn = ""

func (c *confirmChannel) forget(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	_, found := c.ids[id]
	if id != anyReturn {
		delete(c.ids, id)
	}

	return found
}

// returned reports whether a publish that is resolved came back. It is asked once for each.
func (c *confirmChannel) returned(id string) bool {
	if !c.link.HasUnnoted() {
		return c.forget(id)
	}
	q := question{id, make(chan bool, 1)}

	select {
	case c.asked <- q:
		return <-q.answer
	case <-c.done:
		return c.forget(id)
	}
}

// reserve counts a publish that is about to be made, unless the channel is not to be used any more. It counts before it
// looks, so that a channel which is retired meanwhile is not closed under the publish.
func (c *confirmChannel) reserve() bool {
	c.unresolved.Add(1)
	c.used.Store(true)
	if !c.retired.Load() && !c.IsClosed() {
		return true
	}
	c.resolved()

	return false
}

// resolved is called once for each publish that nobody waits for any more.
func (c *confirmChannel) resolved() {
	c.unresolved.Add(-1)
	c.closeIfUnused()
}

// closeIfUnused closes a channel that is retired when nobody waits for an answer on it.
func (c *confirmChannel) closeIfUnused() {
	if !c.retired.Load() { // first: after that, nobody reserves it
		return
	}
	waited := c.unresolved.Load()
	if c.window != nil {
		waited -= c.window.abandoned.Load()
	}
	if waited <= 0 {
		go c.Close() // asks the broker
	}
}

// leave retires the channel, and leaves it open.
func (c *confirmChannel) leave() {
	if !c.retired.Swap(true) && c.window != nil {
		c.window.leaving.Add(1)
	}
}

// isSpoiltByNack tells whether a channel that was nacked is to be left. One with a window stays where too many have been
// left already and are still open: a queue that does not answer keeps them open.
func (c *confirmChannel) isSpoiltByNack() bool {
	version := c.link.Version()
	old := version == "" || strings.HasPrefix(version, "3.")

	return c.window == nil || old && c.window.leaving.Load() < mostLeaving
}

// mostLeaving is how many channels of a sender may be retired and not closed yet, after nacks.
const mostLeaving = 8

// retire closes the channel as soon as nobody waits for it.
func (c *confirmChannel) retire() {
	c.unresolved.Add(1)
	c.leave()
	c.resolved()
}

// closeError waits until the channel is gone, which it is about to be, and tells why; nil without a reason.
func (c *confirmChannel) closeError() error {
	<-c.done
	return c.closed
}

// The broker's answers to a publish other than a confirm.
var (
	ErrReturned = errors.New("the broker could not route the message to any queue")
	ErrRefused  = errors.New("the broker refused the message (nack): is a queue full, or its node down?")

	errLost = errors.New("the channel closed before the broker confirmed the message")
)

// inFlight is one publish of a message that its channel was reserved for.
type inFlight struct {
	channel      *confirmChannel
	confirmation *amqp091.DeferredConfirmation
	id           string // of the message, to tell its return from others; anyReturn if it has none
	at           time.Time
}

// publish sends a message, mandatory. The caller waits for done and then asks for the outcome, or abandons it.
func (c *confirmChannel) publish(exchange, key string, message amqp091.Publishing) (*inFlight, error) {
	at := time.Now()
	confirmation, err := c.PublishWithDeferredConfirm(exchange, key, true, false, message)
	if err != nil {
		c.resolved()
		return nil, err
	}

	return &inFlight{channel: c, confirmation: confirmation, at: at}, nil
}

// done is closed when the broker has answered or the channel is gone.
func (p *inFlight) done() <-chan struct{} { return p.confirmation.Done() }

// abandon is called instead of outcome by a caller that waits no longer.
func (p *inFlight) abandon() {
	c := p.channel
	if c.window == nil {
		c.resolved()
		return
	}
	// Its slot is free when it is answered. A channel with many that are not is given up: the broker does not answer for
	// one queue, and the publishes to others have no room.
	if c.window.abandoned.Add(1) > int64(cap(c.window.slots)/4) {
		c.leave()
	}
	c.closeIfUnused()
	go func() {
		<-p.done()
		c.window.abandoned.Add(-1)
		_ = p.outcome()
	}()
}

// outcome returns nil if a queue has the message. It is called once, after done.
func (p *inFlight) outcome() error {
	defer p.channel.resolved()
	returned := p.channel.returned(p.id)
	if w := p.channel.window; w != nil {
		<-w.slots
	}

	switch {
	case p.confirmation.Acked() && !returned:
		return nil
	case p.confirmation.Acked():
		return ErrReturned
	case !p.channel.IsClosed():
		if p.channel.isSpoiltByNack() {
			p.channel.leave()
		}
		return ErrRefused
	}
	if err := p.channel.closeError(); err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}

	return errLost
}

// untilTaken calls publish until it succeeds or its error is a backoff.Permanent, with growing pauses between the calls.
// When ctx ends it returns the cause.
func untilTaken(ctx context.Context, publish func() error) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, publish() },
		backoff.WithMaxElapsedTime(0), // no limit
		backoff.WithBackOff(&backoff.ExponentialBackOff{
			InitialInterval: 50 * time.Millisecond, MaxInterval: 5 * time.Second, Multiplier: 2,
			RandomizationFactor: 0.3,
		}))

	return err
}
