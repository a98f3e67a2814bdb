package publish

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmdelay "github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/delay"
	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
)

// DelaySettings say how and where messages with a delay are published.
type DelaySettings struct {
	Connection   connection.Settings
	Logger       watermill.LoggerAdapter
	Options      delay.Options
	Names        topology.Names
	CloseTimeout time.Duration
	// Declare is false when nothing may be declared.
	Declare bool

	Marshaler codec.Marshaler
	// Target is where the messages of a topic go.
	Target func(topic string) topology.Target
	// DeclareExchange declares the exchange of a target as the config's builder does.
	DeclareExchange func(channel *amqp091.Channel, exchange string) error
}

// DelayPublisher is a message.Publisher that publishes messages with a delay itself, and hands on all others.
type DelayPublisher struct {
	settings  DelaySettings
	publisher message.Publisher // gets messages without a delay
	stamping  message.Publisher // Watermill's own: it writes all delays into the metadata

	backend topology.Backend
	engine  *Engine
	objects delayObjects
	addedTo sync.Map // int by topology.Target, see added

	closing sync.Once
	failure error // of Close
}

// closeGrace is how long the wrapped publisher has at least to close.
const closeGrace = time.Second

// NewDelayPublisher returns a publisher that is not connected yet. The options must be valid.
func NewDelayPublisher(publisher message.Publisher, settings DelaySettings) (*DelayPublisher, error) {
	settings.Options = settings.Options.WithDefaults()
	backend, err := topology.NewLadder(settings.Options.Ladder)
	if err != nil {
		return nil, err
	}
	p := &DelayPublisher{
		settings:  settings,
		publisher: publisher,
		backend:   backend,
		engine: NewEngine(engineSettings{
			Connection: connection.New(settings.Connection, settings.Logger), Name: "delay publisher",
			Timeout: settings.Options.PublishTimeout, Repairs: settings.Declare,
		}),
		objects: delayObjects{settings: settings, plans: map[topology.Target]topology.Plan{}},
	}
	p.stamping, err = wmdelay.NewPublisher(stamped{p}, wmdelay.PublisherConfig{
		DefaultDelayGenerator: forThoseWithout(settings.Options.DefaultDelayGenerator), AllowNoDelay: true,
	})
	if err != nil {
		return nil, err
	}

	return p, nil
}

type delayGenerator = func(wmdelay.DefaultDelayGeneratorParams) (wmdelay.Delay, error)

// forThoseWithout keeps a generator of default delays from messages that have a due time in their metadata and no
// duration: Watermill's publisher looks for the duration only.
func forThoseWithout(generator delayGenerator) delayGenerator {
	if generator == nil {
		return nil
	}

	return func(params wmdelay.DefaultDelayGeneratorParams) (wmdelay.Delay, error) {
		due, delayed, err := delay.Due(params.Message.Metadata, time.Now())
		if malformed := (*delay.MetadataError)(nil); errors.As(err, &malformed) {
			malformed.Topic, malformed.UUID = params.Topic, params.Message.UUID
		}
		if err != nil || delayed {
			return wmdelay.Until(due), err
		}

		return generator(params)
	}
}

// Publish publishes messages to a topic, each when it is due.
func (p *DelayPublisher) Publish(topic string, messages ...*message.Message) error {
	end, err := p.engine.Begin(topic)
	if err != nil {
		return err
	}
	defer end()

	return p.stamping.Publish(topic, messages...)
}

// stamped gets messages whose delays are in their metadata.
type stamped struct{ *DelayPublisher }

func (s stamped) Publish(topic string, messages ...*message.Message) error {
	b, others, err := s.prepare(topic, messages)
	if err != nil {
		return err
	}
	if b != nil {
		s.engine.Send(&b.Batch, b)
		if err := b.result(); err != nil {
			return err
		}
		if len(others) == 0 {
			return nil
		}
	}

	return s.publisher.Publish(topic, others...)
}

// Backend is what delayed messages wait in.
func (p *DelayPublisher) Backend() topology.Backend { return p.backend }

// Plans are the parts of the backend that this publisher has used, one for each target.
func (p *DelayPublisher) Plans() []topology.Plan { return p.objects.used() }

// Close waits for calls of Publish, ends those that are left, and closes the wrapped publisher. It takes CloseTimeout at
// the longest, and some seconds more if the broker or that publisher does not answer at all.
func (p *DelayPublisher) Close() error {
	p.closing.Do(func() {
		deadline := time.Now().Add(p.settings.CloseTimeout)
		p.engine.Close(deadline)

		closed := make(chan error, 1)
		go func() { closed <- p.publisher.Close() }()
		timeout := time.NewTimer(max(time.Until(deadline), closeGrace))
		defer timeout.Stop()
		select {
		case p.failure = <-closed:
		case <-timeout.C:
			p.failure = fmt.Errorf("cannot close the publisher that the delay publisher wraps: it does not return "+
				"within %s; look at its broker", p.settings.CloseTimeout)
		}
	})

	return p.failure
}
