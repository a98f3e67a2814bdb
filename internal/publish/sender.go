package publish

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
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
	// mostSpare is how many it gets when all are full, which are those of queues that do not answer.
	mostSpare = 16
)

// Sender publishes for any number of callers at a time: mandatory, confirmed and pipelined. Each exchange has channels
// of its own: one that may not be written to closes its channel at each publish, and must not take those with it that go
// elsewhere.
type Sender struct {
	// turn is a lock that can be waited for with a context, since opening a channel can hang. Nobody publishes with it.
	turn chan struct{}

	mu    sync.Mutex
	lanes map[string][]*confirmChannel // by exchange

	leaving atomic.Int64 // lanes that are retired, and not closed yet
}

// NewSender returns a sender without channels.
func NewSender() *Sender {
	return &Sender{turn: make(chan struct{}, 1), lanes: map[string][]*confirmChannel{}}
}

// Lane is one of the channels of an exchange. What a caller sends on it keeps its order.
type Lane struct {
	link     *connection.Link
	exchange string
	channel  *confirmChannel
}

// Sent is a publish that is perhaps not resolved yet. Its Outcome must be asked for once.
type Sent struct{ publish *inFlight }

// What keeps a lane from sending.
var (
	// ErrFull means that too many publishes of the lane are not resolved.
	ErrFull = errors.New("too many messages on this channel are unconfirmed")
	// ErrRetired means that the lane takes no more. What was sent on it may still be answered.
	ErrRetired = errors.New("the channel is no longer used")
)

// Retire closes the channels when nobody waits for an answer on them any more.
func (s *Sender) Retire() {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, lanes := range s.lanes {
		for _, c := range lanes {
			c.retire()
		}
	}
}

// Lane gives the lane of an exchange with the fewest publishes that are not resolved.
func (s *Sender) Lane(ctx context.Context, link *connection.Link, exchange string) (*Lane, error) {
	if c, enough := s.pick(link, exchange); enough {
		return &Lane{link, exchange, c}, nil
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	least, enough := s.pick(link, exchange)
	if enough { // another caller has opened one
		return &Lane{link, exchange, least}, nil
	}
	c, err := openConfirms(link, &window{slots: make(chan struct{}, laneWindow), leaving: &s.leaving})
	switch {
	case err != nil && least != nil: // it does as well
		return &Lane{link, exchange, least}, nil
	case err != nil:
		return nil, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	for exchange, lanes := range s.lanes { // of exchanges that nobody publishes to any more
		if s.lanes[exchange] = usable(lanes); len(s.lanes[exchange]) == 0 {
			delete(s.lanes, exchange)
		}
	}
	s.lanes[exchange] = append(s.lanes[exchange], c)

	return &Lane{link, exchange, c}, nil
}

// pick gives the lane with the fewest publishes that are not resolved, and tells whether no other one is to be opened.
func (s *Sender) pick(link *connection.Link, exchange string) (least *confirmChannel, enough bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	lanes := usable(s.lanes[exchange])
	if s.lanes[exchange] = lanes; len(lanes) == 0 {
		delete(s.lanes, exchange)
	}
	found := 0
	for _, c := range lanes {
		if c.link != link {
			continue
		}
		found++
		if least == nil || c.unresolved.Load() < least.unresolved.Load() {
			least = c
		}
	}
	if least == nil {
		return nil, false
	}
	unresolved := least.unresolved.Load()

	return least, unresolved < laneBusy || found >= mostLanes && unresolved < laneWindow || found >= mostSpare
}

// usable are those of the lanes that take more. It writes into lanes.
func usable(lanes []*confirmChannel) []*confirmChannel {
	kept := lanes[:0]
	for _, c := range lanes {
		if !c.retired.Load() && !c.IsClosed() {
			kept = append(kept, c)
		}
	}
	clear(lanes[len(kept):])

	return kept
}

// Exchange is the one that it publishes to.
func (l *Lane) Exchange() string { return l.exchange }

// Send publishes a message, and gives it an id of ours. It writes into the headers. Where the lane is full it waits, or
// fails with ErrFull.
func (l *Lane) Send(ctx context.Context, key string, message amqp091.Publishing, wait bool) (*Sent, error) {
	c := l.channel
	if err := c.window.enter(ctx, c.done, wait); err != nil {
		return nil, err
	}
	if !c.reserve() {
		<-c.window.slots
		return nil, ErrRetired
	}
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

// enter takes a slot.
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
		return ErrRetired
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
