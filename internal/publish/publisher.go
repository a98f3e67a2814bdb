package publish

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/publish"
	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
)

// Settings say how and where a Publisher publishes.
type Settings struct {
	Connection   connection.Settings
	Logger       watermill.LoggerAdapter
	Options      publish.Options
	CloseTimeout time.Duration
	// Declare is false when nothing may be declared.
	Declare bool

	Marshaler codec.Marshaler
	// Target is where the messages of a topic go.
	Target func(topic string) topology.Target
	// DeclareExchange declares the exchange of a target as the config's builder does.
	DeclareExchange func(channel *amqp091.Channel, exchange string) error
}

// Publisher is a message.Publisher that returns when the broker has the messages.
type Publisher struct {
	settings Settings
	engine   *Engine
	declared Declared
	closing  sync.Once
}

// NewPublisher returns a publisher that is not connected yet. The options must be valid.
func NewPublisher(settings Settings) *Publisher {
	settings.Options = settings.Options.WithDefaults()

	return &Publisher{
		settings: settings,
		engine: NewEngine(engineSettings{
			Connection: connection.New(settings.Connection, settings.Logger), Name: "publisher",
			Timeout: settings.Options.Timeout, Repairs: settings.Declare,
		}),
	}
}

// Publish publishes messages to a topic, and returns when the broker has them all.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	end, err := p.engine.Begin(topic)
	if err != nil {
		return err
	}
	defer end()

	if len(messages) == 0 {
		return nil
	}
	c, err := p.newCall(topic, messages)
	if err != nil {
		return err
	}
	p.engine.Send(&c.Batch, c)

	return c.result()
}

// Close waits for calls of Publish, ends those that are left, and closes the connection. It takes CloseTimeout at the
// longest, and some seconds more if the broker does not answer at all.
func (p *Publisher) Close() error {
	p.closing.Do(func() { p.engine.Close(time.Now().Add(p.settings.CloseTimeout)) })

	return nil
}

// maxName is what AMQP has room for. Over a longer one amqp091-go closes the whole connection.
const maxName = 255

// call is one of Publish.
type call struct {
	Batch

	publisher *Publisher
	topic     string
	target    topology.Target
	checked   bool // the sizes, against what the connection takes
}

func (p *Publisher) newCall(topic string, messages []*message.Message) (*call, error) {
	c := &call{publisher: p, topic: topic, target: p.settings.Target(topic)}
	if c.target == (topology.Target{}) {
		return nil, c.cannot(&topology.NameError{Object: "queue", Problem: "the name is empty; give it one through " +
			"the config's Publish.GenerateRoutingKey"})
	}
	for _, of := range [...]struct{ object, name string }{
		{"exchange", c.target.Exchange}, {"routing key", c.target.Key},
	} {
		if len(of.name) > maxName {
			return nil, c.cannot(&topology.NameError{Object: of.object, Name: of.name,
				Problem: fmt.Sprintf("the name has %d bytes; AMQP has room for %d", len(of.name), maxName)})
		}
	}
	c.Messages = make([]*Message, 0, len(messages))
	for i, msg := range messages {
		if msg == nil {
			return nil, c.cannot(fmt.Errorf("the message with index %d of %d is nil", i, len(messages)))
		}
		marshaled, err := codec.Publish(p.settings.Marshaler, msg)
		if err == nil {
			err = marshaled.Headers.Validate()
		}
		if err != nil {
			return nil, fmt.Errorf("cannot marshal message %q for topic %q, nothing was published: %w", msg.UUID, topic,
				err)
		}
		m := NewMessage(msg, codec.Persistent(marshaled))
		m.Direct, m.Once = true, c.target.Exchange != "" || codec.HasCopies(m.Publishing)
		c.Messages = append(c.Messages, m)
	}

	return c, nil
}

// Ready checks the sizes and declares the exchange.
func (c *call) Ready(ctx context.Context, link *connection.Link, missing time.Time) error {
	if !c.checked {
		for _, m := range c.Messages {
			if part := codec.TooLarge(m.Publishing, link.FrameSize()); part != nil {
				return Final(&publish.TooLargeError{Topic: c.topic, UUID: m.UUID, Part: part.Name, Size: part.Size,
					Most: part.Most})
			}
		}
		c.checked = true
	}
	if c.target.Exchange == "" || !c.publisher.settings.Declare {
		return nil
	}
	exchange := c.target.Exchange
	err := c.publisher.declared.Of(exchange).Declare(ctx, link, missing, func() error {
		return link.OnChannel(func(channel *amqp091.Channel) error {
			err := c.publisher.settings.DeclareExchange(channel, exchange)
			err = topology.ExplainUse(topology.UseDeclare, topology.KindExchange, exchange, err)

			return topology.Explain(topology.KindExchange, exchange, err)
		})
	})
	if IsRefusal(err) {
		err = Final(err)
	}

	return err
}

// Address is that of the topic.
func (c *call) Address(m *Message) (exchange, key string, publishing amqp091.Publishing) {
	return c.target.Exchange, c.target.Key, m.Publishing
}

// result is the error of the call: nil if the broker has everything.
func (c *call) result() error {
	var failed []publish.Failed
	for i, m := range c.Messages {
		if large := (*publish.TooLargeError)(nil); errors.As(m.Err, &large) {
			return large
		}
		if err := c.failure(m); err != nil {
			failed = append(failed, publish.Failed{Index: i, UUID: m.UUID, MayBeStored: m.Perhaps,
				RefusedEachTime: m.Perhaps && !m.Unanswered, Err: err})
		}
	}
	if failed == nil {
		return nil
	}

	return &publish.Error{Topic: c.topic, Of: len(c.Messages), Failed: failed}
}

// failure is why the broker does not have a message, as far as that is known.
func (c *call) failure(m *Message) error {
	blocked := (*publish.BlockedError)(nil)
	switch {
	case m.Refused != nil:
		return &publish.RefusedError{Topic: c.topic, UUID: m.UUID, Err: m.Refused}
	case m.Returned && c.publisher.settings.Options.Unroutable == publish.UnroutableIgnore:
		return nil
	case m.Returned:
		return c.unroutable()
	case m.Resolved && !m.Nacked:
		return nil
	case errors.As(m.Err, &blocked):
		return blocked
	case errors.Is(m.Err, ErrRefused):
		return nacked{m.Err}
	default:
		return fmt.Errorf("%w: %w", publish.ErrUnconfirmed, m.Err)
	}
}

// cannot is why nothing of a call was published.
func (c *call) cannot(err error) error {
	return fmt.Errorf("cannot publish to topic %q, nothing was published: %w", c.topic, err)
}

// nacked is a publish.ErrNacked whose text is that of the engine, which says it already.
type nacked struct{ error }

func (n nacked) Unwrap() error        { return n.error }
func (n nacked) Is(target error) bool { return target == publish.ErrNacked }

func (c *call) unroutable() error {
	if c.target.Exchange == "" {
		return fmt.Errorf("%w: the queue %q does not exist; subscribe to the topic once, or call SubscribeInitialize, "+
			"before you publish", publish.ErrUnroutable, c.target.Key)
	}

	return fmt.Errorf("%w: none is bound to the exchange %q for the routing key %q; subscribe to the topic once, or "+
		"take that for success with publish.UnroutableIgnore", publish.ErrUnroutable, c.target.Exchange, c.target.Key)
}

// IsRefusal tells errors of declarations that another attempt does not end: an object differs or may not be used.
func IsRefusal(err error) bool {
	var (
		conflict  *topology.ConflictError
		access    *topology.AccessError
		exclusive *topology.ExclusiveError
		name      *topology.NameError
	)

	return errors.As(err, &name) || errors.As(err, &conflict) || errors.As(err, &access) || errors.As(err, &exclusive)
}
