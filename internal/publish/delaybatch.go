package publish

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
	"github.com/amqpretry/watermill-retry/internal/connection"
)

// delayBatch is what one call of Publish gives with a delay. A message that was due when Publish was called is direct: it goes
// to the target itself, and all others to the backend, also when they are due by the time that they are published.
type delayBatch struct {
	Batch

	publisher *DelayPublisher
	topic     string
	target    topology.Target
	plan      topology.Plan // the target's part of the backend
	added     int           // bytes that the broker adds to the headers on the way, at most
	due       map[*Message]time.Time
	checked   bool // the sizes, against what the connection takes
}

// prepare finds what has a delay, and checks all of it. The delayBatch is nil if nothing has one.
func (p *DelayPublisher) prepare(topic string, messages []*message.Message) (*delayBatch, []*message.Message, error) {
	var (
		b      *delayBatch
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
			if b, err = p.newDelayBatch(topic); err != nil {
				return nil, nil, err
			}
		}
		m := NewMessage(msg, codec.Delayed(marshaled))
		m.Direct, b.due[m] = !due.After(now), due
		b.Messages = append(b.Messages, m)
	}

	return b, others, nil
}

func (p *DelayPublisher) newDelayBatch(topic string) (*delayBatch, error) {
	target := p.settings.Target(topic)
	if target == (topology.Target{}) {
		return nil, fmt.Errorf("cannot publish to topic %q with a delay, nothing was published: %w", topic,
			&topology.NameError{Object: "queue", Problem: "the name is empty; give it one through the config's " +
				"Publish.GenerateRoutingKey"})
	}
	plan, err := p.backend.Of(target, p.settings.Names)
	if err != nil {
		return nil, fmt.Errorf("cannot publish to topic %q with a delay: %w", topic, err)
	}
	plan.Backend = p.backend
	if target.Exchange == "" {
		plan.Queue = target.Key
	}

	return &delayBatch{publisher: p, topic: topic, target: target, plan: plan, added: p.added(target, plan),
		due: map[*Message]time.Time{}}, nil
}

// added is how many bytes the broker adds to the headers of a message on its way to a target, at most. It depends on the
// names of all objects of the backend, so it is computed once for each target.
func (p *DelayPublisher) added(target topology.Target, plan topology.Plan) int {
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

// waits tells whether a message goes to the backend.
func (b *delayBatch) waits() bool {
	for _, m := range b.Messages {
		if !m.Resolved && !m.Direct {
			return true
		}
	}

	return false
}

// check compares the messages with what the connection takes, and what its consumers will take: the broker adds headers
// on the way.
func (b *delayBatch) check(limit int) error {
	if b.checked {
		return nil
	}
	if limit > 0 { // a shorter delay, at the publish, can have more digits than the present one
		limit = max(1, limit-b.added) // 0 is no limit
	}
	for _, m := range b.Messages {
		if part := codec.TooLarge(m.Publishing, limit); part != nil {
			return &delay.TooLargeError{Topic: b.topic, UUID: m.UUID, Part: part.Name, Size: part.Size, Most: part.Most}
		}
	}
	b.checked = true

	return nil
}

// Ready checks the sizes and declares what the delayBatch needs.
func (b *delayBatch) Ready(ctx context.Context, link *connection.Link, missing time.Time) error {
	if err := b.check(link.FrameSize()); err != nil {
		return Final(err)
	}
	err := b.publisher.objects.ensure(ctx, link, b, missing)
	if end := context.Cause(ctx); err != nil && end != nil && errors.Is(err, end) {
		err = fmt.Errorf("the broker has not yet declared the queues for the delay: %w", err)
	}
	if err != nil {
		for _, m := range b.Open() {
			m.Returned = errors.Is(err, errNoQueue)
		}
	}
	if errors.Is(err, errNoQueue) || errors.Is(err, errNoLanding) || IsRefusal(err) {
		err = Final(err)
	}

	return err
}

// Address is that of the target, or of the backend. A message waits for the rest of its delay, so a second publish does
// not make it late.
func (b *delayBatch) Address(m *Message) (exchange, key string, publishing amqp091.Publishing) {
	publishing = m.Publishing
	if m.Direct { // it keeps its expiration, its priority and its CC
		return b.target.Exchange, b.target.Key, publishing
	}
	exchange, key = b.publisher.backend.Address(b.target, time.Until(b.due[m]), &publishing)

	return exchange, key, publishing
}

// result is the error of the call: nil if the broker has confirmed everything.
func (b *delayBatch) result() error {
	unconfirmed := &delay.UnconfirmedError{Topic: b.topic, Of: len(b.Messages), Final: b.Final}
	noQueue := &delay.NoQueueError{Topic: b.topic, Exchange: b.target.Exchange, Key: b.target.Key}
	var errs []error
	for _, m := range b.Messages {
		if large := (*delay.TooLargeError)(nil); errors.As(m.Err, &large) {
			return large
		}
		switch {
		case m.Refused != nil:
			errs = append(errs, &delay.RefusedError{Topic: b.topic, UUID: m.UUID, Err: m.Refused})
		case m.Returned:
			noQueue.UUIDs, noQueue.Err = append(noQueue.UUIDs, m.UUID), m.Err
		case !m.Resolved:
			unconfirmed.UUIDs, unconfirmed.Err = append(unconfirmed.UUIDs, m.UUID), m.Err
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
