package republish

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/header"
)

const (
	// laneWindow is how many publishes of a lane may be unresolved.
	laneWindow = 1024
	// mostLanes is how many channels an exchange gets: the broker has a process for each. Another one is opened when
	// all have laneBusy publishes that are unresolved.
	mostLanes = 4
	laneBusy  = 8
)

// Sender publishes for any number of callers at a time: mandatory, confirmed and pipelined. Each exchange has channels
// of its own: one that may not be written to closes its channel at each publish, and must not take those with it that go
// elsewhere.
type Sender struct {
	// turn is a lock that can be waited for with a context, since opening a channel can hang. Nobody publishes with it.
	turn  chan struct{}
	lanes map[string][]*confirmChannel // by exchange
}

// NewSender returns a sender without channels.
func NewSender() *Sender {
	return &Sender{turn: make(chan struct{}, 1), lanes: map[string][]*confirmChannel{}}
}

// Lane is one of the channels of an exchange. What a caller sends on it keeps its order, as long as the channel lives.
type Lane struct {
	sender   *Sender
	link     *connection.Link
	exchange string
	channel  *confirmChannel
}

// Sent is a publish that is perhaps not resolved yet. Its Outcome must be asked for once.
type Sent struct{ publish *inFlight }

// ErrFull means that too many publishes of the lane are not resolved.
var ErrFull = errors.New("too many messages of the channel are not confirmed")

// Retire closes the channels when nobody waits for an answer on them any more.
func (s *Sender) Retire() {
	for _, lanes := range s.lanes {
		for _, c := range lanes {
			c.retire()
		}
	}
}

// Lane gives the lane of an exchange with the fewest publishes that are not resolved.
func (s *Sender) Lane(ctx context.Context, link *connection.Link, exchange string) (*Lane, error) {
	l := &Lane{sender: s, link: link, exchange: exchange}

	return l, l.choose(ctx)
}

func (l *Lane) choose(ctx context.Context) error {
	s := l.sender
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	usable := s.lanes[l.exchange][:0]
	var least *confirmChannel
	for _, c := range s.lanes[l.exchange] {
		if c.link != l.link || c.retired.Load() || c.IsClosed() {
			continue
		}
		usable = append(usable, c)
		if least == nil || c.unresolved.Load() < least.unresolved.Load() {
			least = c
		}
	}
	clear(s.lanes[l.exchange][len(usable):])
	if least == nil || least.unresolved.Load() >= laneBusy && len(usable) < mostLanes {
		c, err := openConfirms(l.link, laneWindow)
		if err != nil {
			s.lanes[l.exchange] = usable
			return err
		}
		usable, least = append(usable, c), c
	}
	s.lanes[l.exchange], l.channel = usable, least

	return nil
}

// Send publishes a message, and gives it an id of ours. It writes into the headers. Where the lane is full it waits, or
// fails with ErrFull.
func (l *Lane) Send(ctx context.Context, key string, message amqp091.Publishing, wait bool) (*Sent, error) {
	for {
		c := l.channel
		if err := c.window.enter(ctx, c.done, wait); err != nil {
			return nil, err
		}
		if c.reserve() {
			break
		}
		<-c.window.slots
		if err := l.choose(ctx); err != nil {
			return nil, err
		}
	}

	c := l.channel
	id := strconv.FormatInt(c.window.published.Add(1), 36)
	message.Headers[header.ID] = id
	sent, err := c.publish(l.exchange, key, message)
	if err != nil {
		<-c.window.slots
		if !errors.Is(err, amqp091.ErrClosed) { // it was being written
			err = fmt.Errorf("%w: %w", errLost, err)
		}
		return nil, err
	}
	sent.id = id

	return &Sent{sent}, nil
}

// enter takes a slot. When the channel is gone, somebody may have to wait for ever for one.
func (w *window) enter(ctx context.Context, gone <-chan struct{}, wait bool) error {
	select {
	case w.slots <- struct{}{}:
		return nil
	default:
	}
	if !wait {
		return ErrFull
	}
	select {
	case w.slots <- struct{}{}:
		return nil
	case <-gone:
		return amqp091.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// At is when it was published.
func (s *Sent) At() time.Time { return s.publish.at }

// Outcome waits for the broker's answer, and returns nil when it has confirmed the message and not returned it. An
// answer that is there counts more than the end of a context. Answered is false when it has not come.
func (s *Sent) Outcome(ctx, own context.Context) (answered bool, err error) {
	select {
	case <-s.publish.done():
		return true, s.publish.outcome()
	default:
	}
	select {
	case <-s.publish.done():
		return true, s.publish.outcome()
	case <-ctx.Done():
		s.publish.abandon()
		return false, context.Cause(ctx)
	case <-own.Done():
		s.publish.abandon()
		return false, context.Cause(own)
	}
}

// IsMissing reports whether a message was not taken because what it was published to is missing.
func IsMissing(err error) bool { return isMissing(err) }

// IsLost reports whether the channel was gone before the broker answered: it has the message or not.
func IsLost(err error) bool { return errors.Is(err, errLost) }
