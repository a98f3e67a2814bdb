package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/observe"
	"github.com/amqpretry/watermill-retry/retry"
)

// Status is the state of a failed queue with one of its main queues.
type Status struct {
	Queue
	// Consuming tells whether the processor consumes from the failed queue.
	Consuming bool
	// Err is why it does not, if that is known. While it consumes, Err says that MainQueue is
	// missing: others share the failed queue.
	Err error
}

// Queues returns the failed queues that the processor knows with each of their main queues, sorted
// by name.
func (p *Processor) Queues() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()

	all := make([]Status, 0, len(p.running)+len(p.refused))
	for failed, t := range p.refused {
		for _, m := range t.mains {
			all = append(all, Status{Queue: Queue{failed, m.name}, Err: t.err})
		}
	}
	for failed, s := range p.running {
		for _, m := range s.target.mains {
			all = append(all, Status{Queue: Queue{failed, m.name}, Consuming: s.consuming,
				Err: cmp.Or(s.err, s.missing[m.name])})
		}
	}
	slices.SortFunc(all, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.MainQueue, b.MainQueue))
	})

	return all
}

// Healthy returns an error if Run has ended, or does nothing any more. It is for liveness probes: a
// broker that is down is no error.
func (p *Processor) Healthy() error {
	p.mu.Lock()
	defer p.mu.Unlock()

	switch stuck := max(10*p.options.PollInterval, 5*time.Minute); {
	case p.state == ended:
		return errors.New("the processor has ended")
	case p.state != notStarted && time.Since(p.turned) > stuck:
		return fmt.Errorf("the processor has not listed its queues for %s", time.Since(p.turned).Round(time.Second))
	default:
		return nil
	}
}

// Ready returns an error unless the processor is connected and consumes from its queues. It is for
// readiness probes. A queue that Match has found and that cannot be consumed from is no error, nor
// is a main queue that is missing while others share its failed queue: see [Processor.Queues].
func (p *Processor) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()

	switch {
	case p.state == ended:
		return errors.New("the processor has ended")
	case p.state == notStarted:
		return errors.New("the processor does not run yet")
	case p.connections < max(1, int(p.shards.opened.Load())):
		return errors.New("not connected to the broker")
	case p.state == starting:
		return errors.Join(errors.New("the queues are not listed yet"), p.listed)
	}
	for _, name := range slices.Sorted(maps.Keys(p.running)) {
		switch s := p.running[name]; {
		case s.consuming:
		case s.err != nil && !s.target.listed:
		case s.err != nil:
			return fmt.Errorf("cannot consume from failed queue %q: %w", name, s.err)
		default:
			return fmt.Errorf("not consuming from failed queue %q yet", name)
		}
	}

	return nil
}

// QueueDepths returns the number of ready messages in the failed queues that the processor consumes
// from, and in the retry queues and dead-letter queues of their main queues, sorted by name.
// middleware/metrics asks it at each scrape. Where it cannot read some of them, it returns the rest
// and an error.
func (p *Processor) QueueDepths(ctx context.Context) ([]retry.QueueDepth, error) {
	p.mu.Lock()
	var plans []topology.Plan
	failed := map[string]retry.QueueDepth{}
	for name, s := range p.running {
		if !s.consuming {
			continue // a part may not be there yet, or not any more
		}
		depth := retry.QueueDepth{Queue: name, Role: retry.QueueRoleFailed}
		for _, m := range s.target.mains {
			if s.missing[m.name] == nil {
				plans = append(plans, m.plan)
			}
			depth.MainQueue = m.name
		}
		if len(s.target.mains) > 1 {
			depth.MainQueue = ""
		}
		failed[name] = depth
	}
	p.mu.Unlock()
	queues := observe.QueuesOf(plans)
	maps.Copy(queues, failed)

	return p.observer.QueueDepths(ctx, queues)
}

// Format prints what it is, under any verb: the config has a password.
func (p *Processor) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "*processor.Processor(%p)", p) }
