package processor

import (
	"context"
	"errors"
	"fmt"
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

	if err := p.checkMain(s.ctx, s.target.Main); err != nil {
		return err
	}
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
	if p.options.Topology == topology.Declare {
		queue.Declare = func(channel *amqp091.Channel, _ string) error { return p.declare(channel, shard, s.target) }
	}
	messages, err := shard.consumer.Subscribe(s.ctx, queue)
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

// mainPatience is how long the broker may take to tell whether a main queue exists.
const mainPatience = 30 * time.Second

// checkMain fails if a main queue is missing: its messages would wait for it in their retry queues. A user who may not
// look sees nothing wrong.
func (p *Processor) checkMain(ctx context.Context, main string) error {
	ctx, cancel := context.WithTimeout(ctx, mainPatience)
	defer cancel()

	_, err := p.observer.Depths(ctx, []string{main})
	if broker := (*amqp091.Error)(nil); errors.As(err, &broker) && broker.Code == amqp091.NotFound {
		return fmt.Errorf("its main queue %q does not exist", main)
	}

	return nil
}

// declare declares the topology of a main queue.
func (p *Processor) declare(channel *amqp091.Channel, shard *shard, t target) error {
	if err := p.backends.Declare(p.ctx, channel, t.plan); err != nil {
		return fmt.Errorf("cannot declare the retry topology of queue %q: %w", t.Main, err)
	}
	if err := shard.forwarder.CheckAccess(t.plan); err != nil {
		return fmt.Errorf("cannot dead-letter for queue %q: %w", t.Main, err)
	}
	p.engine.Emit(retry.Event{Kind: retry.EventTopologyDeclared, Topic: t.Main, Queue: t.Main})

	return nil
}
