package processor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/consumer"
	"github.com/amqpretry/watermill-retry/retry"
)

// subscription consumes from one failed queue, until it is cancelled.
type subscription struct {
	target target
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when it is over
	since  time.Time     // when it was started

	// Guarded by Processor.mu.
	consuming bool             // as events say
	began     bool             // it has consumed
	shard     *shard           // nil before
	err       error            // why it does not consume
	missing   map[string]error // by the names of main queues that do not exist, while others do
}

// start begins a subscription. mu is held.
func (p *Processor) start(t target) {
	s := &subscription{target: t, done: make(chan struct{}), since: time.Now()}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(p.ctx))
	p.running[t.failed] = s
	go p.keep(s)
}

// keep subscribes, again and again with backoff while that fails. The consumer handles later
// errors.
func (p *Processor) keep(s *subscription) {
	defer close(s.done)
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.running, s.target.failed)
		delete(p.logged, s.target.failed)
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
		p.logOnce(s.target.failed, "Cannot consume from a failed queue, trying again", err)
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
	opened := sync.OnceFunc(func() { <-p.opening })
	defer opened()

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
	opened()

	p.mu.Lock()
	s.err, s.shard = nil, shard
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

// missingError says that a main queue does not exist.
type missingError struct{ main string }

func (e missingError) Error() string { return fmt.Sprintf("its main queue %q does not exist", e.main) }

// declare declares the topology of those main queues of a subscription that exist. It fails if
// there is none.
func (p *Processor) declare(shard *shard, s *subscription) error {
	mains := s.target.mains
	errs, wg := make([]error, len(mains)), sync.WaitGroup{}
	for i, m := range mains {
		wg.Go(func() { errs[i] = p.declareMain(shard, s, m) })
	}
	wg.Wait()

	missing := map[string]error{}
	for i, err := range errs {
		switch {
		case errors.As(err, new(missingError)):
			missing[mains[i].name] = err
		case err != nil:
			return err
		}
	}
	if len(missing) == len(mains) {
		return errors.Join(errs...)
	}
	p.mu.Lock()
	before := s.missing
	s.missing = maps.Clone(missing) // others change it
	p.mu.Unlock()
	for _, m := range mains {
		if err := missing[m.name]; err != nil && before[m.name] == nil {
			p.options.Logger.Error("A main queue is missing; processing the other main queues of this failed queue",
				err, watermill.LogFields{"amqp_queue_name": s.target.failed})
		}
	}

	return nil
}

// stillMissing looks again for a main queue that was missing, and declares its topology if it is
// there. It returns an error while a message must not wait for it: a retry queue could drop the
// message when the wait is over.
func (p *Processor) stillMissing(shard *shard, s *subscription, m mainQueue) error {
	p.mu.Lock()
	known := s.missing[m.name]
	p.mu.Unlock()
	if known == nil {
		return nil
	}
	err := p.declareMain(shard, s, m)
	if err == nil {
		p.mu.Lock()
		delete(s.missing, m.name)
		p.mu.Unlock()
	}

	return err
}

// declareMain declares the topology of a main queue, if it exists. A user who may not look for it
// sees nothing wrong.
func (p *Processor) declareMain(shard *shard, s *subscription, m mainQueue) error {
	select {
	case shard.declaring <- struct{}{}:
		defer func() { <-shard.declaring }()
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
	link, err := shard.declarer.TryLink(s.ctx)
	if err != nil {
		return err
	}
	if err := link.OnChannel(func(c *amqp091.Channel) error { return checkMain(c, m.name) }); err != nil {
		return err
	}
	if p.options.AssumeTopology {
		return nil
	}
	err = link.OnChannel(func(c *amqp091.Channel) error { return p.declared.DeclarePlan(s.ctx, link, c, m.plan) })
	if err != nil {
		return fmt.Errorf("cannot declare the retry topology of queue %q: %w", m.name, err)
	}
	if err := shard.forwarder.CheckAccess(m.plan); err != nil {
		return fmt.Errorf("cannot dead-letter for queue %q: %w", m.name, err)
	}
	p.engine.Emit(retry.Event{Kind: retry.EventTopologyDeclared, Topic: m.name, Queue: m.name})

	return nil
}

// checkMain fails if a main queue is missing: its messages would wait for it in their retry queues.
// One that the broker refuses to look up, as a permission is missing or the queue is exclusive, is
// none.
func checkMain(channel *amqp091.Channel, main string) error {
	_, err := channel.QueueDeclarePassive(main, true, false, false, false, nil)
	broker := (*amqp091.Error)(nil)
	switch {
	case !errors.As(err, &broker):
		return err
	case broker.Code == amqp091.NotFound:
		return missingError{main}
	case broker.Code == amqp091.AccessRefused, broker.Code == amqp091.ResourceLocked:
		return nil
	default:
		return err
	}
}
