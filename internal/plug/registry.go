package plug

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/transport"
)

// registry knows the queues of a plug: a queue has one policy, and no two plans may share a name.
type registry struct {
	mu     sync.Mutex
	queues map[string]*transport.Source
	// exchanges are those that topics publish to, by topic.
	exchanges map[string]string
	// letters are the plans of queues whose dead letters are subscribed to, by queue.
	letters map[string]topology.Plan
}

func newRegistry() *registry {
	return &registry{queues: map[string]*transport.Source{}, exchanges: map[string]string{}, letters: map[string]topology.Plan{}}
}

// SharedQueueError is returned by Subscribe when two topics share a queue under different policies: a message does not say
// for which topic it is in the queue, so only one policy can hold.
type SharedQueueError struct {
	Queue  string
	Topics [2]string
}

func (e *SharedQueueError) Error() string {
	return fmt.Sprintf(
		"topics %q and %q share queue %q under different policies: give both the same policy, or each its own queue (config.Queue.GenerateName)",
		e.Topics[0], e.Topics[1], e.Queue,
	)
}

// add registers the queue of a topic, or gives the source that is there.
func (r *registry) add(main Main, policy config.Policy, names topology.Names) (*transport.Source, error) {
	plan, err := topology.New(main.Queue, policy, names)
	if err != nil {
		return nil, err
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	if known := r.queues[main.Queue]; known != nil {
		if !known.Policy.Equal(policy) {
			return nil, &SharedQueueError{Queue: main.Queue, Topics: [2]string{known.Topic, main.Topic}}
		}
		return known, nil
	}

	plans := append(r.all(), plan)
	if err := errors.Join(topology.Check(plans...), r.checkExchanges(main, plans)); err != nil {
		return nil, err
	}
	if main.Exchange != "" {
		r.exchanges[main.Exchange] = main.Topic
	}

	s := &transport.Source{Topic: main.Topic, Queue: main.Queue, Policy: policy, Plan: plan, Names: names}
	r.queues[main.Queue] = s

	return s, nil
}

// addLetters notes that dead letters of a queue are subscribed to.
func (r *registry) addLetters(plan topology.Plan) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.letters[plan.Queue] = plan
}

// plans are those of all queues, of some of which only the dead letters are subscribed to.
func (r *registry) plans() []topology.Plan {
	r.mu.Lock()
	defer r.mu.Unlock()

	return append(slices.Collect(maps.Values(r.letters)), r.all()...)
}

// all are the plans of all queues. mu is held.
func (r *registry) all() []topology.Plan {
	plans := make([]topology.Plan, 0, len(r.queues))
	for _, s := range r.queues {
		plans = append(plans, s.Plan)
	}

	return plans
}

// checkExchanges finds retry exchanges with the name of an exchange that a topic publishes to: its messages would be
// routed as if they were failed ones, that is, lost.
func (r *registry) checkExchanges(main Main, plans []topology.Plan) error {
	var errs []error

	for _, plan := range plans {
		for _, x := range plan.Exchanges {
			owner, taken := r.exchanges[x.Name]
			if x.Name == main.Exchange {
				owner, taken = main.Topic, true
			}
			field := "Names.RetryExchange"
			if x.Shared {
				field = "Names.Shared"
			}
			if taken {
				errs = append(errs, &topology.NameError{
					Queue: plan.Queue, Object: "retry exchange", Name: x.Name,
					Problem: fmt.Sprintf("is the exchange that topic %q publishes to; give another name through %s", owner, field),
				})
			}
		}
	}

	return errors.Join(errs...)
}
