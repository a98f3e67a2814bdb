package processor

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/consumer"
	"github.com/amqpretry/watermill-retry/retry"
)

// subscription consumes from one failed queue, until it is cancelled.
type subscription struct {
	target target
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when it is over

	mayNotLook atomic.Bool // the broker does not tell whether the main queue exists

	err error // why it does not consume; guarded by Processor.mu
}

// start begins a subscription. mu is held.
func (p *Processor) start(t target) {
	s := &subscription{target: t, done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(p.ctx))
	p.running[t.Failed] = s
	go p.keep(s)
}

// keep subscribes, again and again with backoff while that fails. What goes wrong later is the consumer's to mend.
func (p *Processor) keep(s *subscription) {
	defer close(s.done)
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.running, s.target.Failed)
		delete(p.told, s.target.Failed)
		if p.state != ended {
			p.look() // it may be wanted with another policy
		}
	}()
	defer s.cancel()

	wait := &backoff.ExponentialBackOff{
		InitialInterval: min(time.Second, p.options.PollInterval), MaxInterval: p.options.PollInterval,
		Multiplier: 2, RandomizationFactor: 0.2,
	}
	wait.Reset()
	for s.ctx.Err() == nil {
		err := p.subscribe(s)
		if s.ctx.Err() != nil || err == nil {
			return
		}

		p.mu.Lock()
		s.err = err
		p.tell(s.target.Failed, "Cannot consume from a failed queue, trying again", err)
		p.mu.Unlock()
		select {
		case <-time.After(wait.NextBackOff()):
		case <-s.ctx.Done():
		}
	}
}

// subscribe consumes until the subscription is cancelled. It returns an error if it cannot begin.
func (p *Processor) subscribe(s *subscription) error {
	select {
	case p.opening <- struct{}{}:
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
	opened := false
	open := func() {
		if !opened {
			opened = true
			<-p.opening
		}
	}
	defer open()

	shard, err := p.shards.reserve(s.ctx)
	if err != nil {
		return err
	}
	defer func() { p.shards.release(shard, err) }()

	forwarder := shard.forwarder.ForQueue(s.target.plan)
	defer forwarder.Retire()
	queue := consumer.Queue{
		Topic: s.target.Main, Name: s.target.Failed, FailedOf: s.target.Main, Policy: s.target.policy,
		Plan: s.target.plan, Names: p.options.Names, Forwarder: forwarder,
	}
	queue.Declare = func(channel *amqp091.Channel, _ string) error { return p.declare(channel, shard, s) }
	messages, err := shard.consumer.Subscribe(s.ctx, queue)
	if errors.Is(err, errMayNotLook) {
		s.mayNotLook.Store(true)
		messages, err = shard.consumer.Subscribe(s.ctx, queue)
	}
	if err != nil {
		return err
	}
	open()

	p.mu.Lock()
	s.err = nil
	p.mu.Unlock()
	for range messages { // there are none: it is closed at the end
	}

	return nil
}

// errMayNotLook says that the broker does not tell whether a main queue exists. Its error has closed the channel.
var errMayNotLook = errors.New("cannot look for the main queue")

// checkMain fails if a main queue is missing: its messages would wait for it in their retry queues.
func checkMain(channel *amqp091.Channel, main string) error {
	_, err := channel.QueueDeclarePassive(main, true, false, false, false, nil)
	broker := (*amqp091.Error)(nil)
	switch {
	case !errors.As(err, &broker):
		return err
	case broker.Code == amqp091.NotFound:
		return fmt.Errorf("its main queue %q does not exist", main)
	case broker.Code == amqp091.AccessRefused, broker.Code == amqp091.ResourceLocked:
		return errMayNotLook
	default:
		return err
	}
}

// declare declares the topology of a main queue, if it exists. A user who may not look for it sees nothing wrong.
func (p *Processor) declare(channel *amqp091.Channel, shard *shard, s *subscription) error {
	t := s.target
	if !s.mayNotLook.Load() {
		if err := checkMain(channel, t.Main); err != nil {
			return err
		}
	}
	if p.options.Topology != topology.Declare {
		return nil
	}
	if err := p.backends.Declare(p.ctx, channel, t.plan); err != nil {
		return fmt.Errorf("cannot declare the retry topology of queue %q: %w", t.Main, err)
	}
	if err := shard.forwarder.CheckAccess(t.plan); err != nil {
		return fmt.Errorf("cannot dead-letter for queue %q: %w", t.Main, err)
	}
	p.engine.Emit(retry.Event{Kind: retry.EventTopologyDeclared, Topic: t.Main, Queue: t.Main})

	return nil
}
