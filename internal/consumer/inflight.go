package consumer

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/engine"
)

// inFlight is the delivery of a message while the retrier's consumer has it handed out: the middleware leaves its
// verdict here, and the consumer carries it out when the router has answered.
type inFlight struct {
	engine.Handout

	arrival      engine.Arrival
	engine       *engine.Engine
	queue        *Queue
	subscription *subscription // nil in tests of what needs none
	delivery     amqp091.Delivery
	nameless     bool   // the publisher gave no Watermill UUID
	lost         string // names of headers that it came without; empty if there are none

	// msg is what is handed out, under this uuid; ctx is its context, which only the consumer ends.
	msg  *message.Message
	uuid string
	ctx  context.Context

	mu      sync.Mutex
	failure deadLetterFailure
}

var _ engine.Delivery = (*inFlight)(nil)

func (h *inFlight) Engine() *engine.Engine { return h.engine }
func (h *inFlight) Queue() string          { return h.queue.Name }

// NeedsCopy is also true for a message whose handler has succeeded by a mark: only a copy carries it.
func (h *inFlight) NeedsCopy() bool { return h.arrival.ByCopy || h.State().Handled != "" }

func (h *inFlight) Withdrawn() bool { return h.ctx.Err() != nil }

// Refuse stops the subscription, and makes the consumer give the message back, unless it is too late for that.
func (h *inFlight) Refuse(err error) bool {
	h.subscription.refuse(err)

	return h.Refused(err)
}
