package amqpretry

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/consumer"
	"github.com/amqpretry/watermill-retry/internal/publish"
)

// registry knows the queues of a retrier, as long as they are used: a queue has one policy, and no two plans may share
// a name.
type registry struct {
	// newForwarder makes what publishes the copies of a queue. Optional.
	newForwarder func(topology.Plan) *publish.QueueForwarder

	mu     sync.Mutex
	queues map[string]*registered
	names  names
	// exchanges are those that topics publish to, with the topics, and how many queues each has.
	exchanges map[string]map[string]int
	// letters are the plans of queues whose dead letters are subscribed to, by queue.
	letters map[string]*letters
}

// registered is a queue with those who use it.
type registered struct {
	queue  *consumer.Queue
	users  int
	topics map[topic]int // how many of them use it for a topic
}

// topic is one that publishes to an exchange, as a group uses it.
type topic struct{ name, exchange, group string }

type letters struct {
	plan  topology.Plan
	users int
}

func newRegistry() *registry {
	return &registry{
		queues: map[string]*registered{}, names: newNames(), exchanges: map[string]map[string]int{},
		letters: map[string]*letters{},
	}
}

// add registers a use of a topic's queue, which ends with leave or keep, and gives its queue.
func (r *registry) add(main mainQueue, policy config.Policy, names topology.Names) (*consumer.Queue, error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	q := r.queues[main.Queue]
	var err error
	if q == nil {
		q, err = r.register(main, policy, names)
	} else {
		err = r.join(q, main, policy)
	}
	if err != nil {
		return nil, err
	}

	of := topic{main.Topic, main.Exchange, main.Group}
	if _, known := q.topics[of]; !known {
		r.publishes(of)
	}
	q.users++
	q.topics[of]++

	return q.queue, nil
}

// publishes notes that a topic of a queue publishes to its exchange. mu is held.
func (r *registry) publishes(of topic) {
	if of.exchange == "" {
		return
	}
	if r.exchanges[of.exchange] == nil {
		r.exchanges[of.exchange] = map[string]int{}
	}
	r.exchanges[of.exchange][of.name]++
}

// register adds a queue that is not used yet. mu is held.
func (r *registry) register(main mainQueue, policy config.Policy, names topology.Names) (*registered, error) {
	plan, err := topology.New(main.Queue, policy, names)
	if err != nil {
		return nil, err
	}

	rivals := r.plansOf(r.names.rivals(plan))
	mine := append(r.plansOf(r.names.owners(main.Exchange)), plan)
	if err := errors.Join(topology.Check(append(rivals, plan)...), r.checkExchanges(main, mine)); err != nil {
		return nil, err
	}

	s := &consumer.Queue{Topic: main.Topic, Name: main.Queue, Policy: policy, Plan: plan, Names: names}
	if r.newForwarder != nil && policy.Mode != config.ModeOff {
		s.Forwarder = r.newForwarder(plan)
	}
	q := &registered{queue: s, topics: map[topic]int{}}
	r.queues[main.Queue] = q
	r.names.add(plan)

	return q, nil
}

// join checks another use of a queue. mu is held.
func (r *registry) join(q *registered, main mainQueue, policy config.Policy) error {
	if !q.queue.Policy.Equal(policy) {
		return &topology.SharedQueueError{Queue: main.Queue, Topics: [2]string{q.queue.Topic, main.Topic}}
	}

	for of := range q.topics {
		if of.group == main.Group {
			continue
		}
		// A subscriber without a group may consume what a group does, such as while a service moves from a retrier for
		// each group. The queue of another topic is most likely that of a group by accident.
		if of.group != "" && main.Group != "" || of.name != main.Topic {
			return &topology.SharedQueueError{Queue: main.Queue, Competing: true,
				Topics: [2]string{of.name, main.Topic}, Groups: [2]string{of.group, main.Group}}
		}
	}

	return r.checkExchanges(main, r.plansOf(r.names.owners(main.Exchange)))
}

// leave ends a use. A queue that nobody uses any more is forgotten, and that is reported.
func (r *registry) leave(main mainQueue) (forgotten bool) { return r.end(main, false) }

// keep ends a use. The queue stays registered until somebody else has used it and left.
func (r *registry) keep(main mainQueue) { r.end(main, true) }

func (r *registry) end(main mainQueue, keep bool) (forgotten bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	q, of := r.queues[main.Queue], topic{main.Topic, main.Exchange, main.Group}
	q.users--
	q.topics[of]--
	switch {
	case keep:
	case q.users == 0:
		for of := range q.topics {
			r.forget(q, of)
		}
		delete(r.queues, main.Queue)
		r.names.remove(q.queue.Plan)
		if q.queue.Forwarder != nil {
			q.queue.Forwarder.Retire()
		}

		return true
	case q.topics[of] == 0:
		r.forget(q, of)
	}

	return false
}

// forget takes a topic from a queue. mu is held.
func (r *registry) forget(q *registered, of topic) {
	delete(q.topics, of)
	topics := r.exchanges[of.exchange]
	if topics == nil {
		return
	}
	if topics[of.name]--; topics[of.name] == 0 {
		delete(topics, of.name)
	}
	if len(topics) == 0 {
		delete(r.exchanges, of.exchange)
	}
}

// addLetters registers a use of a queue's dead letters, which ends with leaveLetters.
func (r *registry) addLetters(plan topology.Plan) {
	r.mu.Lock()
	defer r.mu.Unlock()

	l := r.letters[plan.Queue]
	if l == nil {
		l = &letters{plan: plan}
		r.letters[plan.Queue] = l
	}
	l.users++
}

// leaveLetters ends a use. With keep they stay registered until somebody else has used them and left.
func (r *registry) leaveLetters(plan topology.Plan, keep bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	l := r.letters[plan.Queue]
	if l.users--; l.users == 0 && !keep {
		delete(r.letters, plan.Queue)
	}
}

// plans are those of all queues, of some of which only the dead letters are subscribed to.
func (r *registry) plans() []topology.Plan {
	r.mu.Lock()
	defer r.mu.Unlock()

	plans := make([]topology.Plan, 0, len(r.letters)+len(r.queues))
	for _, l := range r.letters {
		plans = append(plans, l.plan)
	}

	return append(plans, r.plansOf(slices.Collect(maps.Keys(r.queues)))...)
}

// plansOf are the plans of queues. mu is held.
func (r *registry) plansOf(queues []string) []topology.Plan {
	plans := make([]topology.Plan, 0, len(queues)+1)
	for _, queue := range queues {
		plans = append(plans, r.queues[queue].queue.Plan)
	}

	return plans
}

// checkExchanges finds retry exchanges with the name of an exchange that a topic publishes to: its messages would be
// routed as if they were failed ones, that is, lost.
func (r *registry) checkExchanges(main mainQueue, plans []topology.Plan) error {
	var errs []error

	for _, plan := range plans {
		for _, x := range plan.Exchanges {
			owner, taken := r.publisherTo(x.Name)
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
					Problem: fmt.Sprintf("is the exchange that topic %q publishes to; give another name through %s",
						owner, field),
				})
			}
		}
	}

	return errors.Join(errs...)
}

// publisherTo gives a topic that publishes to an exchange.
func (r *registry) publisherTo(exchange string) (topic string, found bool) {
	topics := r.exchanges[exchange]
	if len(topics) == 0 {
		return "", false
	}

	return slices.Min(slices.Collect(maps.Keys(topics))), true
}
