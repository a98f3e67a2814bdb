package delayed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/delay"
	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/republish"
)

// batch is what one call of Publish gives with a delay.
type batch struct {
	topic    string
	target   topology.Target
	plan     topology.Plan // the target's part of the backend
	added    int           // bytes that the broker adds to the headers on the way, at most
	messages []*outgoing
	checked  bool // their sizes, against what the connection takes
	oneByOne bool // they are published one by one, to find the one that the broker refuses for good
	final    bool // another attempt would have the same end
}

// outgoing is a message on its way to the broker.
type outgoing struct {
	uuid    string
	ctx     context.Context // of the message
	due     time.Time
	message amqp091.Publishing

	// past tells that it was due when Publish was called: it goes to the target itself, and all others to the backend,
	// also when they are due by the time that they are published.
	past     bool
	sent     *republish.Sent // nil without a publish that is not resolved
	resolved bool            // confirmed, or given up for good
	noQueue  bool            // given up because no queue takes it
	err      error           // why it is not confirmed
}

// prepare finds what has a delay, and checks all of it. The batch is nil if nothing has one.
func (p *Publisher) prepare(topic string, messages []*message.Message) (*batch, []*message.Message, error) {
	var (
		b      *batch
		others []*message.Message
		now    = time.Now()
	)
	for _, msg := range messages {
		due, delayed, err := delay.Due(msg.Metadata, now)
		if malformed := (*delay.MetadataError)(nil); errors.As(err, &malformed) {
			malformed.Topic, malformed.UUID = topic, msg.UUID
		}
		if err != nil {
			return nil, nil, err
		}
		if !delayed {
			others = append(others, msg)
			continue
		}
		if longest := p.settings.Options.Ladder.Longest(); due.Sub(now) > longest {
			return nil, nil, &delay.TooLongError{Topic: topic, UUID: msg.UUID, Delay: due.Sub(now), Longest: longest}
		}
		marshaled, err := codec.Publish(p.settings.Marshaler, msg)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot marshal message %q for topic %q: %w", msg.UUID, topic, err)
		}
		if err := marshaled.Headers.Validate(); err != nil {
			return nil, nil, fmt.Errorf("cannot publish message %q to topic %q: its headers are refused: %w", msg.UUID,
				topic, err)
		}
		if b == nil {
			if b, err = p.newBatch(topic); err != nil {
				return nil, nil, err
			}
		}
		b.messages = append(b.messages, &outgoing{uuid: msg.UUID, ctx: live(msg.Context()), due: due,
			past: !due.After(now), message: codec.Delayed(marshaled)})
	}

	return b, others, nil
}

// live returns a context that has not ended. Watermill's Timeout ends the context of a message when its handler returns,
// and the message, or an output that has its context, is published after that.
func live(ctx context.Context) context.Context {
	if ctx.Err() != nil {
		return context.WithoutCancel(ctx)
	}

	return ctx
}

func (p *Publisher) newBatch(topic string) (*batch, error) {
	target := p.settings.Target(topic)
	if target == (topology.Target{}) {
		return nil, &topology.NameError{Object: "queue of the topic " + topic, Problem: "the name is empty; give it " +
			"one through the config's Publish.GenerateRoutingKey"}
	}
	plan, err := p.backend.Of(target, p.settings.Names)
	if err != nil {
		return nil, fmt.Errorf("cannot publish to topic %q with a delay: %w", topic, err)
	}
	plan.Backend = p.backend
	if target.Exchange == "" {
		plan.Queue = target.Key
	}

	return &batch{topic: topic, target: target, plan: plan, added: p.added(target, plan)}, nil
}

// added is how many bytes the broker adds to the headers of a message on its way to a target, at most. It depends on the
// names of all objects of the backend, so it is computed once for each target.
func (p *Publisher) added(target topology.Target, plan topology.Plan) int {
	if known, ok := p.addedTo.Load(target); ok {
		return known.(int)
	}
	longest := target.Key
	for _, q := range plan.Queues {
		if len(q.Name) > len(longest) {
			longest = q.Name
		}
	}
	added := codec.NewBackendReturns(p.backend, target, longest).Most()
	p.addedTo.Store(target, added)

	return added
}

// open are the messages that are not resolved.
func (b *batch) open() []*outgoing {
	var open []*outgoing
	for _, m := range b.messages {
		if !m.resolved {
			open = append(open, m)
		}
	}

	return open
}

// waits tells whether a message goes to the backend.
func (b *batch) waits() bool {
	for _, m := range b.messages {
		if !m.resolved && !m.past {
			return true
		}
	}

	return false
}

// check compares the messages with what the connection takes, and what its consumers will take: the broker adds headers
// on the way.
func (b *batch) check(limit int) error {
	if b.checked {
		return nil
	}
	if limit > 0 { // a shorter delay, at the publish, can have more digits than the present one
		limit = max(1, limit-b.added) // 0 is no limit
	}
	for _, m := range b.messages {
		if part := codec.TooLarge(m.message, limit); part != nil {
			return &delay.TooLargeError{Topic: b.topic, UUID: m.uuid, Part: part.Name, Size: part.Size, Most: part.Most}
		}
	}
	b.checked = true

	return nil
}

// result is the error of the call: nil if the broker has confirmed everything.
func (b *batch) result() error {
	unconfirmed := &delay.UnconfirmedError{Topic: b.topic, Of: len(b.messages), Final: b.final}
	noQueue := &delay.NoQueueError{Topic: b.topic, Exchange: b.target.Exchange, Key: b.target.Key}
	var errs []error
	for _, m := range b.messages {
		if large := (*delay.TooLargeError)(nil); errors.As(m.err, &large) {
			return large
		}
		switch refused := (*delay.RefusedError)(nil); {
		case errors.As(m.err, &refused):
			errs = append(errs, refused)
		case m.noQueue:
			noQueue.UUIDs, noQueue.Err = append(noQueue.UUIDs, m.uuid), m.err
		case !m.resolved:
			unconfirmed.UUIDs, unconfirmed.Err = append(unconfirmed.UUIDs, m.uuid), m.err
		}
	}
	if len(unconfirmed.UUIDs) > 0 {
		errs = append(errs, unconfirmed)
	}
	if len(noQueue.UUIDs) > 0 {
		errs = append(errs, noQueue)
	}
	if len(errs) == 1 {
		return errs[0]
	}

	return errors.Join(errs...)
}
