package publish

import (
	"errors"
	"fmt"
	"sync"
	"time"

	wmdelay "github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config/delay"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
)

// DelayPublisher is a message.Publisher that publishes messages with a delay itself, and hands on
// all others.
type DelayPublisher struct {
	own      *Publisher
	wrapped  message.Publisher // gets messages without a delay
	stamping message.Publisher // Watermill's own: it writes all delays into the metadata

	options delay.Options
	names   topology.Names
	ladder  *topology.Ladder
	targets sync.Map // *delays by topology.Target

	close func() error // once
}

// closeGrace is how long the wrapped publisher has at least to close.
const closeGrace = time.Second

// NewDelayPublisher returns a publisher that is not connected yet. Its settings have no options:
// those given must be valid.
func NewDelayPublisher(wrapped message.Publisher, settings Settings, options delay.Options, names topology.Names,
) (*DelayPublisher, error) {
	options = options.WithDefaults()
	ladder, err := topology.NewLadder(options.Ladder)
	if err != nil {
		return nil, err
	}
	settings.Options.Timeout = options.PublishTimeout
	p := &DelayPublisher{
		own: NewPublisher(settings), wrapped: wrapped, options: options, names: names, ladder: &ladder,
	}
	p.close = sync.OnceValue(p.closeBoth)
	p.stamping, err = wmdelay.NewPublisher(stamped{p}, wmdelay.PublisherConfig{
		DefaultDelayGenerator: forThoseWithout(options.DefaultDelayGenerator), AllowNoDelay: true,
	})
	if err != nil {
		return nil, err
	}

	return p, nil
}

type delayGenerator = func(wmdelay.DefaultDelayGeneratorParams) (wmdelay.Delay, error)

// forThoseWithout keeps a generator of default delays from messages that have a due time in their
// metadata and no duration: Watermill's publisher looks for the duration only.
func forThoseWithout(generator delayGenerator) delayGenerator {
	if generator == nil {
		return nil
	}

	return func(params wmdelay.DefaultDelayGeneratorParams) (wmdelay.Delay, error) {
		due, delayed, err := dueOf(params.Topic, params.Message, time.Now())
		if err != nil || delayed {
			return wmdelay.Until(due), err
		}

		return generator(params)
	}
}

// dueOf is when a message is due, if it has a delay.
func dueOf(topic string, msg *message.Message, now time.Time) (due time.Time, delayed bool, err error) {
	due, delayed, err = delay.Due(msg.Metadata, now)
	if malformed := (*delay.MetadataError)(nil); errors.As(err, &malformed) {
		malformed.Topic, malformed.UUID = topic, msg.UUID
	}

	return due, delayed, err
}

// Publish publishes messages to a topic, each when it is due.
func (p *DelayPublisher) Publish(topic string, messages ...*message.Message) error {
	end, err := p.own.begin(topic)
	if err != nil {
		return err
	}
	defer end()

	return p.stamping.Publish(topic, messages...)
}

// stamped gets messages whose delays are in their metadata.
type stamped struct{ *DelayPublisher }

func (s stamped) Publish(topic string, messages ...*message.Message) error {
	c, others, err := s.prepare(topic, messages)
	if err != nil {
		return err
	}
	if c != nil {
		if err := s.own.send(c); err != nil || len(others) == 0 {
			return err
		}
	}

	return s.wrapped.Publish(topic, others...)
}

// prepare finds what has a delay, and checks all of it. The call is nil if nothing has one. A
// message that is due already goes to the target itself, and all others to the ladder, also when
// they are due by the time that they are published.
func (p *DelayPublisher) prepare(topic string, messages []*message.Message) (*call, []*message.Message, error) {
	var (
		c      *call
		others []*message.Message
		now    = time.Now()
	)
	for i, msg := range messages {
		due, delayed, err := dueOf(topic, msg, now)
		if err != nil {
			return nil, nil, err
		}
		if !delayed {
			others = append(others, msg)
			continue
		}
		if longest := p.options.Ladder.Longest(); due.Sub(now) > longest {
			return nil, nil, &delay.TooLongError{Topic: topic, UUID: msg.UUID, Delay: due.Sub(now), Longest: longest}
		}
		if c == nil {
			if c, err = p.newCall(topic); err != nil {
				return nil, nil, err
			}
		}
		if !due.After(now) {
			due = time.Time{}
		}
		if err := c.add(i, msg, due); err != nil {
			return nil, nil, err
		}
	}

	return c, others, nil
}

func (p *DelayPublisher) newCall(topic string) (*call, error) {
	c, err := p.own.newCall(topic)
	if err != nil {
		return nil, err
	}
	if c.delays, err = p.delaysTo(c.target); err != nil {
		return nil, fmt.Errorf("cannot publish to topic %q with a delay: %w", topic, err)
	}

	return c, nil
}

// delaysTo is the same for each call with a target: what the broker adds depends on the names of
// all objects of the ladder.
func (p *DelayPublisher) delaysTo(target topology.Target) (*delays, error) {
	if known, ok := p.targets.Load(target); ok {
		return known.(*delays), nil
	}
	plan, err := p.ladder.Of(target, p.names)
	if err != nil {
		return nil, err
	}
	plan.Ladder = p.ladder
	if target.Exchange == "" {
		plan.Queue = target.Key
	}
	longest := target.Key
	for _, q := range plan.Queues {
		if len(q.Name) > len(longest) {
			longest = q.Name
		}
	}
	known, _ := p.targets.LoadOrStore(target, &delays{DelayPublisher: p, plan: plan,
		added: codec.NewLadderReturns(p.ladder, target, longest).Most()})

	return known.(*delays), nil
}

// Ladder is what delayed messages wait in.
func (p *DelayPublisher) Ladder() *topology.Ladder { return p.ladder }

// Plans are the parts of the ladder that this publisher has used, one for each target.
func (p *DelayPublisher) Plans() []topology.Plan {
	var plans []topology.Plan
	p.targets.Range(func(_, target any) bool {
		if d := target.(*delays); d.used.Load() {
			plans = append(plans, d.plan)
		}
		return true
	})

	return plans
}

// Close waits for calls of Publish, ends those that are left, and closes the wrapped publisher. It
// takes CloseTimeout at the longest, and some seconds more if the broker or that publisher does not
// answer at all.
func (p *DelayPublisher) Close() error { return p.close() }

func (p *DelayPublisher) closeBoth() error {
	bound := p.own.settings.CloseTimeout
	deadline := time.Now().Add(bound)
	_ = p.own.Close()

	closed := make(chan error, 1)
	go func() { closed <- p.wrapped.Close() }()
	select {
	case err := <-closed:
		return err
	case <-time.After(max(time.Until(deadline), closeGrace)):
		return fmt.Errorf("cannot close the publisher that the delay publisher wraps: it does not return within %s; "+
			"look at its broker", bound)
	}
}
