package publish

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/publish"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
)

// Settings say how and where a Publisher publishes.
type Settings struct {
	Connection connection.Settings
	Logger     watermill.LoggerAdapter
	// Name of the publisher, for errors: "delay publisher".
	Name         string
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

// Publisher is a message.Publisher that returns when the broker has the messages. It is safe for
// concurrent use.
type Publisher struct {
	settings   Settings
	connection *connection.Connection
	sender     *sender
	published  atomic.Int64 // messages, for their ids
	refusals   refusals
	declared   Declared

	timeout error         // of a call
	alone   chan struct{} // rounds that have channels of their own

	ctx     context.Context // ends with Close
	cancel  context.CancelCauseFunc
	closing sync.Once

	mu      sync.Mutex
	bounded context.Context // see within
	began   time.Time       // it
	closed  bool
	running sync.WaitGroup // calls
}

// NewPublisher returns a publisher that is not connected yet. The options must be valid.
func NewPublisher(settings Settings) *Publisher {
	settings.Options = settings.Options.WithDefaults()
	ctx, cancel := context.WithCancelCause(context.Background())

	return &Publisher{
		settings: settings, connection: connection.New(settings.Connection, settings.Logger),
		sender: newSender(false), timeout: fmt.Errorf("tried for %s", settings.Options.Timeout),
		alone: make(chan struct{}, 4), ctx: ctx, cancel: cancel,
	}
}

// Publish publishes messages to a topic, and returns when the broker has them all.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	end, err := p.begin(topic)
	if err != nil {
		return err
	}
	defer end()

	if len(messages) == 0 {
		return nil
	}
	c, err := p.newCall(topic)
	if err != nil {
		return err
	}
	for i, msg := range messages {
		if msg == nil {
			return fmt.Errorf("cannot publish to topic %q, nothing was published: the message with index %d of %d is "+
				"nil", topic, i, len(messages))
		}
		if err := c.add(i, msg, time.Time{}); err != nil {
			return err
		}
	}

	return p.send(c)
}

// begin begins a call, which Close waits for until end is called. It fails after Close.
func (p *Publisher) begin(topic string) (end func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.closed {
		return nil, fmt.Errorf("cannot publish to topic %q: the %s is %w", topic, p.settings.Name, connection.ErrClosed)
	}
	p.running.Add(1)

	return p.running.Done, nil
}

// Close waits for calls of Publish, ends those that are left, and closes the connection. It takes
// CloseTimeout at the longest, and a second or two more if the broker does not answer at all.
func (p *Publisher) Close() error {
	p.closing.Do(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()

		connection.WaitUntil(time.Now().Add(p.settings.CloseTimeout), p.running.Wait)
		p.cancel(connection.ErrClosed)
		connection.WaitUntil(time.Now().Add(time.Second), p.running.Wait)
		p.connection.Close(time.Now().Add(time.Second))
	})

	return nil
}
