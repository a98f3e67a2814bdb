package engine

import (
	"context"
	"errors"
	"sync"
)

// Handout is the consumer's side of a message while it is handed out: the middlewares leave their
// verdict here, and the consumer carries it out when the router has answered. What a consumer adds
// makes it a [Delivery].
type Handout struct {
	Progress

	mu         sync.Mutex
	inside     int           // middlewares that have the message in hand
	handler    string        // the name of the one that has it
	seen       bool          // a middleware has had it
	left       chan struct{} // closed when the last has left; made by who waits for it
	refusal    error         // its handler is not called, and the subscription stops
	settlement *Settlement
	succeeded  bool
	answered   bool
}

// ErrSettled is the error of a middleware that comes too late with its verdict.
var ErrSettled = errors.New("cannot retry the message: it was already acknowledged or rejected; remove middlewares " +
	"such as InstantAck that are added before retrier.Middleware")

// Enter notes that a middleware has the message in hand, for the handler of this name.
func (h *Handout) Enter(handler string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.inside++
	h.handler = handler
	h.seen = true
}

// Leave notes that it has not any more.
func (h *Handout) Leave() {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.inside--; h.inside == 0 && h.left != nil {
		close(h.left)
		h.left = nil
	}
}

// WasSeen reports whether a middleware has had the message.
func (h *Handout) WasSeen() bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	return h.seen
}

// Handler is the name of the handler that has the message; empty if no middleware has said.
func (h *Handout) Handler() string {
	h.mu.Lock()
	defer h.mu.Unlock()

	return h.handler
}

// Refused makes the consumer give the message back. It is false if that comes too late.
func (h *Handout) Refused(err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	if !h.answered {
		h.refusal = err
	}

	return !h.answered
}

// Wait waits until no middleware has the message in hand: a handler may have answered by itself. It
// reports whether that came before the end of ctx.
func (h *Handout) Wait(ctx context.Context) bool {
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

// Succeeded notes that the handler has.
func (h *Handout) Succeeded() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.succeeded = true
}

// Settle leaves a verdict, unless one is there: an inner middleware, which saw the handler itself,
// knows best.
func (h *Handout) Settle(_ context.Context, s *Settlement) error {
	h.mu.Lock()
	late := h.answered // nobody takes it any more
	if h.settlement == nil && !late {
		h.settlement = s
	}
	h.mu.Unlock()
	if late {
		s.Abandoned(ErrSettled)
		return ErrSettled
	}

	return nil
}

// Next is what a consumer does with a message that is answered.
type Next int

// What can come next.
const (
	NextGiveBack      Next = iota // to the queue, at once: a middleware has refused it
	NextCarryOut                  // the settlement
	NextAcknowledge               // it is handled
	NextUnpublishable             // an attempt has failed, although its handler has not
	NextNack                      // somebody has nacked it, and nobody has judged
)

// Answer takes the verdict that the middlewares have left, nil without one, and returns what comes
// next, by what the router has answered. Nothing can be left any more afterwards. While a service
// closes, a publisher may be closed before its handlers.
func (h *Handout) Answer(acked, closing bool) (next Next, verdict *Settlement) {
	h.Finish()

	h.mu.Lock()
	defer h.mu.Unlock()

	h.answered = true
	switch {
	case h.refusal != nil:
		return NextGiveBack, h.settlement
	case h.settlement != nil:
		return NextCarryOut, h.settlement
	case acked:
		return NextAcknowledge, nil
	case h.succeeded && !closing:
		return NextUnpublishable, nil
	default:
		return NextNack, nil
	}
}
