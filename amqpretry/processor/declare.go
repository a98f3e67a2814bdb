package processor

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/retry"
)

// missingError says that a main queue does not exist.
type missingError struct{ main string }

func (e missingError) Error() string { return fmt.Sprintf("its main queue %q does not exist", e.main) }

// declare declares the topology of those main queues of a subscription that exist. It fails if there is none.
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
	p.noteMissing(s, missing)

	return nil
}

// noteMissing remembers which main queues are missing, and logs those that were not before.
func (p *Processor) noteMissing(s *subscription, missing map[string]error) {
	p.mu.Lock()
	before := s.missing
	s.missing = missing
	p.mu.Unlock()

	for _, m := range s.target.mains {
		if err := missing[m.name]; err != nil && before[m.name] == nil {
			p.options.Logger.Error("A main queue is missing; processing the other main queues of this failed queue",
				err, watermill.LogFields{"amqp_queue_name": s.target.failed})
		}
	}
}

// stillMissing looks again for a main queue that was missing, and declares its topology if it is there. It returns an
// error while a message must not wait for it: a retry queue could drop the message when the wait is over.
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

// declareMain declares the topology of a main queue, if it exists. A user who may not look for it sees nothing wrong.
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
	if _, known := s.mayNotLook.Load(m.name); !known {
		err := link.OnChannel(func(c *amqp091.Channel) error { return checkMain(c, m.name) })
		if errors.Is(err, errMayNotLook) {
			s.mayNotLook.Store(m.name, true)
		} else if err != nil {
			return err
		}
	}
	if p.options.AssumeTopology {
		return nil
	}
	err = link.OnChannel(func(c *amqp091.Channel) error { return p.declared.DeclarePlan(s.ctx, c, m.plan) })
	if err != nil {
		return fmt.Errorf("cannot declare the retry topology of queue %q: %w", m.name, err)
	}
	if err := shard.forwarder.CheckAccess(m.plan); err != nil {
		return fmt.Errorf("cannot dead-letter for queue %q: %w", m.name, err)
	}
	p.engine.Emit(retry.Event{Kind: retry.EventTopologyDeclared, Topic: m.name, Queue: m.name})

	return nil
}

// errMayNotLook means that the broker refuses to look up a main queue: a permission is missing, or the queue is
// exclusive. The error has closed the channel.
var errMayNotLook = errors.New("cannot look for the main queue")

// checkMain fails if a main queue is missing: its messages would wait for it in their retry queues.
func checkMain(channel *amqp091.Channel, main string) error {
	_, err := channel.QueueDeclarePassive(main, true, false, false, false, nil)
	broker := (*amqp091.Error)(nil)
	switch {
	case !errors.As(err, &broker):
		return err
	case broker.Code == amqp091.NotFound:
		return missingError{main}
	case broker.Code == amqp091.AccessRefused, broker.Code == amqp091.ResourceLocked:
		return errMayNotLook
	default:
		return err
	}
}
