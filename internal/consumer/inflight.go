package consumer

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/engine"
)

// inFlight is the delivery of a message while the retrier's consumer has it handed out: the middleware leaves its verdict here,
// and the consumer carries it out when the router has answered.
type inFlight struct {
	arrival
	engine.Standing

	engine       *engine.Engine
	queue        *Queue
	subscription *subscription // nil in tests of what needs none
	delivery     amqp091.Delivery
	consumer     int    // of the session, that it was delivered to
	nameless     bool   // the publisher gave no Watermill UUID
	lost         string // names of headers that it came without; empty if there are none

	// msg is what is handed out, under this uuid; ctx is its context, which only the consumer ends.
	msg  *message.Message
	uuid string
	ctx  context.Context

	mu         sync.Mutex
	inside     int           // middlewares that have the message in hand
	seen       bool          // a middleware has had it
	left       chan struct{} // closed when the last has left; made by who waits for it
	refusal    error         // its handler is not called, and the subscription stops
	settlement *engine.Settlement
	succeeded  bool
	answered   bool
	failure    deadLetterFailure
}

var _ engine.Delivery = (*inFlight)(nil)

func (h *inFlight) Engine() *engine.Engine { return h.engine }
func (h *inFlight) Queue() string          { return h.queue.Name }

func (h *inFlight) Withdrawn() bool { return h.ctx.Err() != nil }

func (h *inFlight) Enter() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.inside++
	h.seen = true
}

// wasSeen tells whether a middleware has had the message.
func (h *inFlight) wasSeen() bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	return h.seen
}

func (h *inFlight) Leave() {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.inside--; h.inside == 0 && h.left != nil {
		close(h.left)
		h.left = nil
	}
}

// Refuse stops the subscription, and makes the consumer give the message back, unless it is too late for that.
func (h *inFlight) Refuse(err error) bool {
	h.subscription.refuse(err)

	h.mu.Lock()
	defer h.mu.Unlock()

	if !h.answered {
		h.refusal = err
	}

	return !h.answered
}

// wait waits until no middleware has the message in hand: a handler may have answered by itself. It reports whether that came
// before the end of ctx.
func (h *inFlight) wait(ctx context.Context) bool {
	h.mu.Lock()
	if h.inside == 0 {
		h.mu.Unlock()
		return true
	}
	if h.left == nil {
		h.left = make(chan struct{})
	}
	left := h.left
	h.mu.Unlock()

	select {
	case <-left:
		return true
	case <-ctx.Done():
		return false
	}
}

func (h *inFlight) Succeeded() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.succeeded = true
}

func (h *inFlight) Settle(_ context.Context, s engine.Settlement) error {
	if !h.leave(s) {
		s.Abandoned(errSettled)
		return errSettled
	}

	return nil
}

// leave is false if nobody takes it any more.
func (h *inFlight) leave(s engine.Settlement) bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.settlement == nil && !h.answered { // an inner middleware, which saw the handler itself, knows best
		h.settlement = &s
	}

	return !h.answered
}

// answer takes what the middleware has left, once the router has answered. Nothing can be left any more afterwards.
func (h *inFlight) answer() (s *engine.Settlement, succeeded bool) {
	h.Finish()

	h.mu.Lock()
	defer h.mu.Unlock()

	h.answered = true

	return h.settlement, h.succeeded
}
