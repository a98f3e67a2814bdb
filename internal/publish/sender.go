package publish

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

const (
	// mostChannels is how many channels an exchange gets from a sender that is not in order: the
	// broker has a process for each. Another one is opened when all are busy.
	mostChannels = 4
	// mostSpare is how many it gets when all are full, which are those of queues that do not
	// answer.
	mostSpare = 16
	// busyAt and fullAt are how many publishes of such a channel are unresolved.
	busyAt, fullAt = 8, 1024
)

// sender publishes for any number of callers at a time: mandatory, confirmed and pipelined. Each
// exchange has channels of its own: one that may not be written to closes its channel at each
// publish, and must not take those with it that go elsewhere.
type sender struct {
	inOrder bool   // what is published to an exchange goes over one channel
	waits   func() // called before it waits for an answer of the broker; nil for nothing

	// turn is a lock that can be waited for with a context, since opening a channel can hang.
	// Nobody publishes with it.
	turn chan struct{}

	mu       sync.Mutex
	channels map[string][]*confirmChannel // by exchange

	leaving atomic.Int64 // channels that are retired, and not closed yet
	retired atomic.Bool
}

// newSender returns a sender without channels.
func newSender(inOrder bool) *sender {
	return &sender{inOrder: inOrder, turn: make(chan struct{}, 1), channels: map[string][]*confirmChannel{}}
}

// retire closes the channels when nobody waits for an answer on them any more. The sender sends all
// the same, over a channel that is closed after that.
func (s *sender) retire() {
	s.retired.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, channels := range s.channels {
		for _, c := range channels {
			c.retire()
		}
	}
	clear(s.channels)
}

// send publishes a message on the channel of an exchange.
func (s *sender) send(ctx context.Context, link *connection.Link, exchange, key string, message amqp091.Publishing,
	id string) (*pending, error) {
	for {
		c, err := s.channel(ctx, link, exchange)
		if err != nil {
			return nil, err
		}
		p, err := c.send(key, message, id)
		if s.retired.Load() {
			c.retire()
		}
		if !errors.Is(err, errRetired) {
			return p, err
		}
	}
}

// channel gives the channel of an exchange with the fewest publishes that are not resolved. What a
// caller sends on it keeps its order.
func (s *sender) channel(ctx context.Context, link *connection.Link, exchange string) (*confirmChannel, error) {
	if c, enough := s.pick(link, exchange); enough {
		return c, nil
	}
	if s.waits != nil {
		s.waits()
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	least, enough := s.pick(link, exchange)
	if enough { // another caller has opened one
		return least, nil
	}
	c, err := openConfirms(link, exchange, &s.leaving)
	switch {
	case err != nil && least != nil: // it does as well
		return least, nil
	case err != nil:
		return nil, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	for exchange := range s.channels { // of exchanges that nobody publishes to any more
		s.usable(exchange)
	}
	s.channels[exchange] = append(s.channels[exchange], c)

	return c, nil
}

// pick gives the channel with the fewest publishes that are not resolved, and tells whether no
// other one is to be opened.
func (s *sender) pick(link *connection.Link, exchange string) (least *confirmChannel, enough bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	found := 0
	for _, c := range s.usable(exchange) {
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

	return least, s.inOrder || unresolved < busyAt || found >= mostSpare ||
		found >= mostChannels && unresolved < fullAt
}

// usable are the channels of an exchange that take more. The others are forgotten. mu is held.
func (s *sender) usable(exchange string) []*confirmChannel {
	kept := slices.DeleteFunc(s.channels[exchange], func(c *confirmChannel) bool { return !c.isUsable() })
	if s.channels[exchange] = kept; len(kept) == 0 {
		delete(s.channels, exchange)
	}

	return kept
}
