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
	"github.com/amqpretry/watermill-retry/retry"
)

// Status is that of a failed queue and one of its main queues.
type Status struct {
	Pair
	Consuming bool
	Err       error
}

// Queues returns the failed queues that the processor knows with each of their main queues, sorted by name.
func (p *Processor) Queues() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()

	all := make([]Status, 0, len(p.running)+len(p.refused))
	for failed, t := range p.refused {
		for _, m := range t.mains {
			all = append(all, Status{Pair: Pair{failed, m.name}, Err: t.err})
		}
	}
	for failed, s := range p.running {
		for _, m := range s.target.mains {
			all = append(all, Status{Pair: Pair{failed, m.name}, Consuming: p.consuming[failed],
				Err: cmp.Or(s.err, s.missing[m.name])})
		}
	}
	slices.SortFunc(all, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.Failed, b.Failed), cmp.Compare(a.Main, b.Main))
	})

	return all
}

// Healthy returns an error when Run has ended, or does nothing any more: the process should be restarted. That the
// broker is down is no such error.
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

// Ready returns an error unless the processor is connected, knows its queues, and consumes from all of them. A queue
// that a pattern has found and that has an error of its own does not count.
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
		case p.consuming[name]:
		case s.err != nil && !s.target.listed:
		case s.err != nil:
			return fmt.Errorf("cannot consume from failed queue %q: %w", name, s.err)
		default:
			return fmt.Errorf("not consuming from failed queue %q yet", name)
		}
	}

	return nil
}

// QueueDepths returns the number of ready messages in the failed queues, and in the retry queues and dead-letter queues
// of their main queues.
func (p *Processor) QueueDepths(ctx context.Context) ([]retry.QueueDepth, error) {
	p.mu.Lock()
	plans, failed := map[string]topology.Plan{}, []retry.QueueDepth(nil)
	for name, s := range p.running {
		if !p.consuming[name] {
			continue // a part may not be there yet, or not any more
		}
		depth := retry.QueueDepth{Queue: name, Role: retry.QueueRoleFailed}
		for _, m := range s.target.mains {
			if s.missing[m.name] == nil {
				plans[m.name] = m.plan
			}
			depth.MainQueue = m.name
		}
		if len(s.target.mains) > 1 {
			depth.MainQueue = ""
		}
		failed = append(failed, depth)
	}
	p.mu.Unlock()

	return p.observer.PlanDepths(ctx, slices.Collect(maps.Values(plans)), failed...)
}
