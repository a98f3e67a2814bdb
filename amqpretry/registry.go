package amqpretry

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/amqpconfig"
	"github.com/amqpretry/watermill-retry/internal/consumer"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// mainQueue is a main queue as a topic uses it.
type mainQueue = amqpconfig.Main

// registry knows the queues of a retrier, as long as they are used: a queue has one policy, and no
// two plans may share a name.
type registry struct {
	// newForwarder makes what publishes the copies of a queue. Optional.
	newForwarder func(topology.Plan) *publish.QueueForwarder

	mu      sync.Mutex
	queues  map[string]*registered
	letters map[string]*registered // whose dead letters are subscribed to
	// owners are the main queues of the plans that have an object: a new plan is compared with
	// those that have a name of its own, and not with all.
	owners index[object, string]
	// publishing are the topics that publish to an exchange.
	publishing index[string, mainQueue]
}

// registered is a queue with those who use it.
type registered struct {
	queue  *consumer.Queue
	users  int
	topics map[mainQueue]int // how many of them use it for a topic
}

// index has sets of values.
type index[K, V comparable] map[K]map[V]struct{}

func (i index[K, V]) add(key K, value V) {
	if i[key] == nil {
		i[key] = map[V]struct{}{}
	}
	i[key][value] = struct{}{}
}

func (i index[K, V]) remove(key K, value V) {
	if delete(i[key], value); len(i[key]) == 0 {
		delete(i, key)
	}
}

// object is what a broker keeps apart by its name, with whether a plan shares it with others.
type object struct {
	kind, name string
	shared     bool
}

// objectsOf are a plan's main queue, exchanges and queues.
func objectsOf(plan topology.Plan) []object {
	objects := []object{{rabbitmq.KindQueue, plan.Queue, false}}
	for _, x := range plan.Exchanges {
		objects = append(objects, object{rabbitmq.KindExchange, x.Name, x.Shared})
	}
	for _, q := range plan.Queues {
		objects = append(objects, object{rabbitmq.KindQueue, q.Name, q.Shared})
	}

	return objects
}

func newRegistry() *registry {
	return &registry{
		queues: map[string]*registered{}, letters: map[string]*registered{}, owners: index[object, string]{},
		publishing: index[string, mainQueue]{},
	}
}

// add registers a use of a topic's queue, which ends with leave, and gives its queue.
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
	r.publishing.add(main.Exchange, main)
	q.users++
	q.topics[main]++

	return q.queue, nil
}

// register adds a queue that is not used yet. mu is held.
func (r *registry) register(main mainQueue, policy config.Policy, names topology.Names) (*registered, error) {
	plan, err := topology.New(main.Queue, policy, names)
	if err != nil {
		return nil, err
	}

	objects := objectsOf(plan)
	rivals := append(r.rivals(objects), plan)
	mine := append(r.rivals([]object{{rabbitmq.KindExchange, main.Exchange, false}}), plan)
	if err := errors.Join(topology.Check(rivals...), r.checkExchanges(main, mine)); err != nil {
		return nil, err
	}

	s := &consumer.Queue{Topic: main.Topic, Name: main.Queue, Policy: policy, Plan: plan, Names: names}
	if r.newForwarder != nil && policy.Mode != config.ModeOff {
		s.Forwarder = r.newForwarder(plan)
	}
	r.queues[main.Queue] = &registered{queue: s, topics: map[mainQueue]int{}}
	for _, o := range objects {
		r.owners.add(o, plan.Queue)
	}

	return r.queues[main.Queue], nil
}

// join checks another use of a queue. mu is held.
func (r *registry) join(q *registered, main mainQueue, policy config.Policy) error {
	if !q.queue.Policy.Equal(policy) {
		return &topology.SharedQueueError{Queue: main.Queue, Topics: [2]string{q.queue.Topic, main.Topic}}
	}

	for of := range q.topics {
		if of.Group == main.Group {
			continue
		}
		// A subscriber without a group may consume what a group does, such as while a service moves
		// from a retrier for each group. The queue of another topic is most likely that of a group
		// by accident.
		if of.Group != "" && main.Group != "" || of.Topic != main.Topic {
			return &topology.SharedQueueError{Queue: main.Queue, Competing: true,
				Topics: [2]string{of.Topic, main.Topic}, Groups: [2]string{of.Group, main.Group}}
		}
	}

	return r.checkExchanges(main, r.rivals([]object{{rabbitmq.KindExchange, main.Exchange, false}}))
}

// leave ends a use, and reports whether the queue is forgotten, as nobody uses it any more. With
// keep it stays registered until somebody else has used it and left.
func (r *registry) leave(main mainQueue, keep bool) (forgotten bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	q := r.queues[main.Queue]
	q.users--
	q.topics[main]--
	switch {
	case keep:
	case q.users == 0:
		for of := range q.topics {
			r.publishing.remove(of.Exchange, of)
		}
		for _, o := range objectsOf(q.queue.Plan) {
			r.owners.remove(o, main.Queue)
		}
		delete(r.queues, main.Queue)
		if q.queue.Forwarder != nil {
			q.queue.Forwarder.Retire()
		}

		return true
	case q.topics[main] == 0:
		delete(q.topics, main)
		r.publishing.remove(main.Exchange, main)
	}

	return false
}

// addLetters registers a use of a queue of dead letters, which ends with leaveLetters.
func (r *registry) addLetters(queue *consumer.Queue) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.letters[queue.Plan.Queue] == nil {
		r.letters[queue.Plan.Queue] = &registered{queue: queue}
	}
	r.letters[queue.Plan.Queue].users++
}

// leaveLetters ends a use. With keep they stay registered until somebody else has used them and
// left.
func (r *registry) leaveLetters(queue *consumer.Queue, keep bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	l := r.letters[queue.Plan.Queue]
	if l.users--; l.users == 0 && !keep {
		delete(r.letters, queue.Plan.Queue)
	}
}

// plans are those of all queues, of some of which only the dead letters are subscribed to.
func (r *registry) plans() []topology.Plan {
	r.mu.Lock()
	defer r.mu.Unlock()

	var plans []topology.Plan
	for _, used := range []map[string]*registered{r.letters, r.queues} {
		for _, q := range used {
			plans = append(plans, q.queue.Plan)
		}
	}

	return plans
}

// rivals are the plans that have one of these objects for themselves, or share one that is not to
// be shared. mu is held.
func (r *registry) rivals(objects []object) []topology.Plan {
	found := map[string]struct{}{}
	for _, o := range objects {
		if !o.shared {
			maps.Copy(found, r.owners[object{o.kind, o.name, true}])
		}
		maps.Copy(found, r.owners[object{o.kind, o.name, false}])
	}
	plans := make([]topology.Plan, 0, len(found)+1)
	for _, queue := range slices.Sorted(maps.Keys(found)) {
		plans = append(plans, r.queues[queue].queue.Plan)
	}

	return plans
}

// checkExchanges finds retry exchanges with the name of an exchange that a topic publishes to: its
// messages would be routed as if they were failed ones, that is, lost.
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
	for main := range r.publishing[exchange] {
		if !found || main.Topic < topic {
			topic, found = main.Topic, true
		}
	}

	return topic, found
}
