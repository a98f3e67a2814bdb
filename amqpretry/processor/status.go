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
	"github.com/amqpretry/watermill-retry/internal/health"
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

// Health tells whether the processor consumes from its queues, and what is wrong with them and with
// its connections. Package amqpretry/health serves it over HTTP. Before the queues are listed, and
// while a queue of Config.Queues was not consumed from yet, the processor is not ready. A queue
// that Match has found and that cannot be consumed from is only reported, and so is a main queue
// that is missing while others share its failed queue.
func (p *Processor) Health() retry.Health {
	now := time.Now()
	problems := p.connections.Problems()
	shards := map[*shard]bool{}
	p.mu.Lock()
	problems = append(problems, p.state.problems(now.Sub(p.turned), p.options.PollInterval, p.listed)...)
	for name, t := range p.refused {
		problems = append(problems, retry.Problem{Kind: retry.ProblemConsumer, Queue: name, Err: t.err,
			Text: fmt.Sprintf("cannot process failed queue %q: %v", name, t.err)})
	}
	began := p.state == started
	for name, s := range p.running {
		if s.shard != nil {
			shards[s.shard] = true
		}
		if began = began && (s.began || s.err != nil); !s.began {
			problems = append(problems, retry.Problem{Kind: retry.ProblemConsumer, Queue: name, Since: s.since,
				Err: s.err, NotReady: s.target.listed && s.err != nil || s.err == nil && !p.began,
				Text: fmt.Sprintf("cannot consume from failed queue %q: %v", name, cmp.Or(s.err, errNotYet))})
		}
		for main, err := range s.missing {
			problems = append(problems, retry.Problem{Kind: retry.ProblemMainQueue, Queue: name, Topic: main, Err: err,
				Text: fmt.Sprintf("messages of failed queue %q become dead letters: %v; declare it", name, err)})
		}
	}
	p.began = p.began || began
	p.mu.Unlock()
	var all []health.Subscription
	for shard := range shards {
		all = append(all, shard.consumer.Health(now)...)
		problems = append(problems, shard.forwarder.Problems()...)
	}

	return health.Judge(now, all, problems)
}

var errNotYet = errors.New("not yet")

// problems are those of a processor in this state that has looked for its queues a time ago. listed
// is why it did not find them.
func (s runState) problems(ago, every time.Duration, listed error) []retry.Problem {
	p := retry.Problem{Kind: retry.ProblemRunning, NotReady: true}
	switch {
	case s == ended:
		p.Text = "the processor has ended"
	case s == notStarted:
		p.Text = "the processor does not run yet"
	case ago > max(10*every, 5*time.Minute):
		p.Kind = retry.ProblemProgress
		p.Text = fmt.Sprintf("the processor has not listed its queues for %s; restart it", ago.Round(time.Second))
	case s == starting:
		p.Err, p.Text = listed, fmt.Sprintf("the queues are not listed yet: %v", cmp.Or(listed, errNotYet))
	default:
		return nil
	}

	return []retry.Problem{p}
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
