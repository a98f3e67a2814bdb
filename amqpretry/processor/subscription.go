package processor

import (
	"context"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/amqpretry/watermill-retry/internal/consumer"
)

// subscription consumes from one failed queue, until it is cancelled.
type subscription struct {
	target target
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when it is over

	mayNotLook sync.Map // names of main queues that the broker refuses to look up

	// Guarded by Processor.mu.
	err     error            // why it does not consume
	missing map[string]error // by the names of main queues that do not exist, while others do
}

// start begins a subscription. mu is held.
func (p *Processor) start(t target) {
	s := &subscription{target: t, done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(p.ctx))
	p.running[t.failed] = s
	go p.keep(s)
}

// keep subscribes, again and again with backoff while that fails. The consumer handles later errors.
func (p *Processor) keep(s *subscription) {
	defer close(s.done)
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.running, s.target.failed)
		delete(p.told, s.target.failed)
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
		p.tell(s.target.failed, "Cannot consume from a failed queue, trying again", err)
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

	shard, err := p.shards.reserve(s.ctx, len(s.target.mains))
	if err != nil {
		return err
	}
	defer func() { p.shards.release(shard, len(s.target.mains), err) }()

	queue := consumer.Queue{Name: s.target.failed, Policy: s.target.mains[0].policy, Plan: s.target.mains[0].plan,
		DeclareApart: func() error { return p.declare(shard, s) },
		Unsure:       func(queue string, arrived time.Time) bool { return p.isUnsure(s, queue, arrived) }}
	if len(s.target.mains) == 1 {
		queue.Topic = s.target.mains[0].name
	}
	for _, m := range s.target.mains {
		forwarder := shard.forwarder.ForQueue(m.plan)
		defer forwarder.Retire()
		queue.FailedOf = append(queue.FailedOf, &consumer.Queue{
			Topic: m.name, Name: s.target.failed, Policy: m.policy, Plan: m.plan, Names: p.options.Names,
			Forwarder: forwarder, Missing: func() error { return p.stillMissing(shard, s, m) },
		})
	}
	messages, err := shard.consumer.Subscribe(s.ctx, queue)
	if err != nil {
		return err
	}
	open()

	p.mu.Lock()
	s.err = nil
	p.mu.Unlock()
	look := time.NewTicker(p.options.PollInterval)
	defer look.Stop()
	for {
		select {
		case <-messages: // there are none: it is closed at the end
			return nil
		case <-look.C:
			for _, m := range s.target.mains {
				_ = p.stillMissing(shard, s, m)
			}
		}
	}
}
