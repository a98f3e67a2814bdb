package publish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cenkalti/backoff/v5"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/publish"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// call is one of Publish.
type call struct {
	publisher *Publisher
	topic     string
	target    topology.Target
	messages  []*outgoing
	delays    *delays   // nil for a call without a delay
	checked   bool      // the sizes, against what the connection takes
	final     bool      // another round has the same end
	missing   time.Time // when the last message was published for which something was missing

	most   int // messages of a round for each target that has refused some; 0 for all
	pauses *backoff.ExponentialBackOff
}

// outgoing is a message on its way to the broker.
type outgoing struct {
	index      int // in the call
	uuid, id   string
	ctx        context.Context // its own
	publishing amqp091.Publishing
	due        time.Time // zero for one that goes to its target, and is not published again when it comes back
	once       bool      // not published again after a nack: queues that have taken it would get it twice

	outcome outcome
	err     error // why it is not confirmed
	// The broker has not answered to a publish of it, or has refused one with a nack. It may have
	// it all the same.
	unanswered, wasNacked bool

	target  topology.Target // of its last publish
	suspect bool            // it may be the one for which the broker has closed a channel
	sent    *pending        // nil without a publish that is not resolved
}

// outcome is what has become of a message.
type outcome int

const (
	open       outcome = iota // to be published, or published again
	confirmed                 // the broker has it
	unroutable                // no queue takes it
	nacked                    // a queue has refused it, and it is not published again
	refused                   // the broker takes it under no circumstances
)

func (p *Publisher) newCall(topic string) (*call, error) {
	c := &call{publisher: p, topic: topic, target: p.settings.Target(topic)}
	cannot := func(object, name, problem string) error {
		return fmt.Errorf("cannot publish to topic %q, nothing was published: %w", topic,
			&topology.NameError{Object: object, Name: name, Problem: problem})
	}
	if c.target == (topology.Target{}) {
		return nil, cannot("queue", "",
			"the name is empty; give it one through the config's Publish.GenerateRoutingKey")
	}
	for _, of := range [...]struct{ object, name string }{
		{"exchange", c.target.Exchange}, {"routing key", c.target.Key},
	} {
		if len(of.name) > codec.MaxShortString {
			return nil, cannot(of.object, of.name,
				fmt.Sprintf("the name has %d bytes; AMQP has room for %d", len(of.name), codec.MaxShortString))
		}
	}

	return c, nil
}

// add adds a message, whose own context is that of the Watermill message. One that has ended is
// none: Watermill's Timeout ends the context of a message when its handler returns, and the
// message, or an output that has its context, is published after that.
func (c *call) add(index int, msg *message.Message, due time.Time) error {
	publishing, err := codec.Publish(c.publisher.settings.Marshaler, msg)
	if err == nil {
		err = publishing.Headers.Validate()
	}
	if err != nil {
		return fmt.Errorf("cannot marshal message %q for topic %q, nothing was published: %w", msg.UUID, c.topic, err)
	}
	m := &outgoing{index: index, uuid: msg.UUID, ctx: msg.Context(), due: due,
		id: strconv.FormatInt(c.publisher.published.Add(1), 36)}
	if m.ctx.Err() != nil {
		m.ctx = context.WithoutCancel(m.ctx)
	}
	headers := amqp091.Table{header.ID: m.id}
	maps.Copy(headers, publishing.Headers) // without an id: it is stripped of ours
	if c.delays != nil {
		publishing.ReplyTo = codec.ReplyTo(publishing.ReplyTo)
	} else {
		m.once = c.target.Exchange != "" || headers[header.BrokerCC] != nil || headers[header.BrokerBCC] != nil
	}
	if !due.IsZero() {
		headers[header.Due] = wire.FormatTime(due) // renewed when it is published
	}
	publishing.Headers, publishing.DeliveryMode = headers, amqp091.Persistent
	m.publishing = publishing
	c.messages = append(c.messages, m)

	return nil
}

// open are the messages that have no outcome.
func (c *call) open() []*outgoing {
	var messages []*outgoing
	for _, m := range c.messages {
		if m.outcome == open {
			messages = append(messages, m)
		}
	}

	return messages
}

// hasEnded tells whether its own context has ended and its error says so. The end of the call came
// later.
func (m *outgoing) hasEnded() bool {
	end := context.Cause(m.ctx)

	return end != nil && errors.Is(m.err, end)
}

// ready checks the sizes and declares what the messages need, also what was missing. An error is
// that of all messages that are open.
func (c *call) ready(ctx context.Context, link *connection.Link) error {
	if err := c.check(link.FrameSize()); err != nil {
		c.final = true
		return err
	}
	var err error
	if c.delays == nil {
		err = c.declareExchange(ctx, link, c.missing)
	} else {
		err = c.delays.declare(ctx, link, c)
	}
	c.final = isRefusal(err)

	return err
}

// check compares the messages with what the connection takes, and what its consumers will take: the
// broker adds headers to what is delayed.
func (c *call) check(limit int) error {
	if c.checked {
		return nil
	}
	if limit > 0 && c.delays != nil { // a shorter delay, at the publish, can have more digits than the present one
		limit = max(1, limit-c.delays.added) // 0 is no limit
	}
	for _, m := range c.messages {
		if part := codec.TooLarge(m.publishing, limit); part != nil {
			return &publish.TooLargeError{Topic: c.topic, UUID: m.uuid, Part: part.Name, Size: part.Size,
				Most: part.Most}
		}
	}
	c.checked = true

	return nil
}

func (c *call) declareExchange(ctx context.Context, link *connection.Link, after time.Time) error {
	exchange := c.target.Exchange
	if exchange == "" || !c.publisher.settings.Declare {
		return nil
	}

	return c.publisher.declared.Of(exchange).Declare(ctx, link, after, func() error {
		return link.OnChannel(func(channel *amqp091.Channel) error {
			err := c.publisher.settings.DeclareExchange(channel, exchange)
			err = topology.Explain(rabbitmq.UseDeclare, rabbitmq.KindExchange, exchange, err)

			return topology.Explain("", rabbitmq.KindExchange, exchange, err)
		})
	})
}

// address completes a message, and tells where it goes: to the target, or to the ladder for the
// rest of its delay, so that a second publish does not make it late.
func (c *call) address(m *outgoing) (exchange, key string, publishing amqp091.Publishing) {
	publishing = m.publishing
	if m.due.IsZero() {
		return c.target.Exchange, c.target.Key, publishing
	}
	now, ladder := time.Now(), c.delays.ladder
	delay := m.due.Sub(now)
	publishing.Headers[header.Due] = wire.FormatTime(now.Add(ladder.Config.RoundUp(delay)))
	exchange, key = ladder.Address(c.target, delay, &publishing)

	return exchange, key, publishing
}

// result is the error of the call: nil if the broker has everything.
func (c *call) result() error {
	var failed []publish.Failed
	for _, m := range c.messages {
		if large := (*publish.TooLargeError)(nil); errors.As(m.err, &large) {
			return large
		}
		if err := c.failure(m); err != nil {
			failed = append(failed, publish.Failed{Index: m.index, UUID: m.uuid, Err: err,
				MayBeStored: m.unanswered || m.wasNacked, RefusedEachTime: m.wasNacked && !m.unanswered})
		}
	}
	if failed == nil {
		return nil
	}

	return &publish.Error{Topic: c.topic, Of: len(c.messages), Failed: failed, Final: c.final}
}

// failure is why the broker does not have a message, as far as that is known.
func (c *call) failure(m *outgoing) error {
	blocked := (*publish.BlockedError)(nil)
	switch {
	case m.outcome == confirmed,
		m.outcome == unroutable && c.publisher.settings.Options.IgnoreUnroutable:
		return nil
	case m.outcome == refused:
		return &publish.RefusedError{Topic: c.topic, UUID: m.uuid, Err: m.err}
	case m.outcome == unroutable && c.target.Exchange == "":
		return fmt.Errorf("%w: the queue %q does not exist; subscribe to the topic once, or call SubscribeInitialize, "+
			"before you publish", publish.ErrUnroutable, c.target.Key)
	case m.outcome == unroutable:
		then := ", or take that for success with IgnoreUnroutable"
		if c.delays != nil {
			then = ""
		}
		return fmt.Errorf("%w: none is bound to the exchange %q for the routing key %q; subscribe to the topic once%s",
			publish.ErrUnroutable, c.target.Exchange, c.target.Key, then)
	case errors.As(m.err, &blocked):
		return blocked
	case errors.Is(m.err, ErrRefused):
		return nackedError{m.err}
	default:
		return fmt.Errorf("%w: %w", publish.ErrUnconfirmed, m.err)
	}
}

// nackedError is a publish.ErrNacked whose text is that of the sender, which says it already.
type nackedError struct{ error }

func (n nackedError) Unwrap() error        { return n.error }
func (n nackedError) Is(target error) bool { return target == publish.ErrNacked }

// isRefusal tells errors of declarations that another round does not end: an object differs, may
// not be used, or is not there and not to be declared.
func isRefusal(err error) bool {
	var (
		conflict  *topology.ConflictError
		access    *topology.AccessError
		exclusive *topology.ExclusiveError
		name      *topology.NameError
	)

	return errors.Is(err, errNoQueue) || errors.Is(err, errNoLanding) || errors.As(err, &name) ||
		errors.As(err, &conflict) || errors.As(err, &access) || errors.As(err, &exclusive)
}
