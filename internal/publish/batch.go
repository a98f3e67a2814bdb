package publish

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
)

// Batch is what one call publishes.
type Batch struct {
	Messages []*Message
	// Final says that another call would have the same end: the error of all that are open.
	Final bool
}

// Message is one on its way to the broker.
type Message struct {
	UUID       string
	Publishing amqp091.Publishing // its headers are its own, as it is given an id
	// Direct messages go to where they are to end up: one that comes back is not published again.
	Direct bool

	// Once means that one that is refused (nack) is not published again: queues that have taken it would get it twice.
	Once bool

	// Resolved means that it is confirmed, or given up for good.
	Resolved bool
	// Returned means that it was given up because no queue takes it.
	Returned bool
	// Nacked means that it was given up because a queue has refused it.
	Nacked bool
	// Refused is why the broker takes it under no circumstances.
	Refused *amqp091.Error
	// Perhaps means that the broker has not answered to a publish of it, or has refused one with a nack, and may have it.
	// Unanswered is the former alone.
	Perhaps, Unanswered bool
	// Err is why it is not confirmed.
	Err error

	ctx     context.Context // its own
	target  topology.Target // of its last publish
	suspect bool            // it may be the one for which the broker has closed a channel
	sent    *pending        // nil without a publish that is not resolved
}

// NewMessage makes one whose own context is that of a Watermill message. One that has ended is none: Watermill's Timeout
// ends the context of a message when its handler returns, and the message, or an output that has its context, is
// published after that.
func NewMessage(of *message.Message, publishing amqp091.Publishing) *Message {
	ctx := of.Context()
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}

	return &Message{UUID: of.UUID, Publishing: publishing, ctx: ctx}
}

// hasEnded tells whether its own context has ended and its error says so. The end of the call came later.
func (m *Message) hasEnded() bool {
	end := context.Cause(m.ctx)

	return end != nil && errors.Is(m.Err, end)
}

// Route says where the messages of a batch go.
type Route interface {
	// Ready is called before messages are published on a link. It makes ready what they need, also what was missing at a
	// publish at that time. An error is that of all messages that are open; one that is final is wrapped by Final.
	Ready(ctx context.Context, link *connection.Link, missing time.Time) error
	// Address completes a message, and tells where it goes.
	Address(m *Message) (exchange, key string, publishing amqp091.Publishing)
}

// suspects are those of which one may be refused for good. They are none any more then.
func suspects(open []*Message) []*Message {
	var suspects []*Message
	for _, m := range open {
		if m.suspect {
			m.suspect = false
			suspects = append(suspects, m)
		}
	}

	return suspects
}

// Open are the messages that are not resolved.
func (b *Batch) Open() []*Message {
	var open []*Message
	for _, m := range b.Messages {
		if !m.Resolved {
			open = append(open, m)
		}
	}

	return open
}
