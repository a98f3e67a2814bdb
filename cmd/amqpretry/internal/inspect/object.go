package inspect

import (
	"errors"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// Topic is a main queue with its policy and its plan.
type Topic struct {
	Name   string
	Policy config.Policy
	Plan   topology.Plan
}

// Topics plans the topics of main queues.
func Topics(targets []cli.Target, policies config.Policies, names topology.Names) ([]Topic, error) {
	var errs []error
	topics := make([]Topic, len(targets))
	for i, t := range targets {
		policy := policies.For(t.Topic)
		plan, err := topology.New(t.Queue, policy, names)
		errs = append(errs, err)
		topics[i] = Topic{t.Topic, policy, plan}
	}
	if err := errors.Join(errs...); err != nil { // else it would only be said again
		return nil, err
	}
	return topics, topology.Check(Plans(topics)...)
}

// Plans are those of topics.
func Plans(topics []Topic) []topology.Plan {
	all := make([]topology.Plan, len(topics))
	for i, t := range topics {
		all[i] = t.Plan
	}
	return all
}

// Argument is a topic as it is given on a command line.
func (t Topic) Argument() string {
	if t.Name == t.Plan.Queue {
		return t.Name
	}
	return t.Name + "=" + t.Plan.Queue
}

// Protect says how a main queue gets what its strategy needs.
func (t Topic) Protect() config.Protection { return t.Policy.WithDefaults().Protect }

// Role is what an object is for.
type Role string

// The roles.
const (
	RoleMain       Role = "main queue"
	RoleRetry      Role = "retry queue"
	RoleDeadLetter Role = "dead-letter queue"
	RoleLanding    Role = "landing queue"
	// RoleDelay and RoleUnroutable are those of a ladder.
	RoleDelay      Role = "delay queue"
	RoleUnroutable Role = "queue for unroutable messages"

	RoleExchange Role = rabbitmq.KindExchange
	RoleBinding  Role = "binding"
)

// Object is one that should be there.
type Object struct {
	Name  string
	Role  Role
	Topic Topic
	// Queue, Exchange or Binding is its part of the plan; a main queue has none.
	Queue    *topology.Queue
	Exchange *topology.Exchange
	Binding  *topology.Binding
	// Target of a landing queue, and the name of its ladder if no topic has it.
	Target        topology.Target
	LandingLadder string
	// Ladder is the name of the one that it is a part of; empty for objects of a topic.
	Ladder string
	// Is what is known of a queue.
	Is Queue
}

// IsQueue tells whether it is a queue.
func (o Object) IsQueue() bool { return o.Exchange == nil && o.Binding == nil }

// Label is its role and its name.
func (o Object) Label() string { return fmt.Sprintf("%s %q", o.Role, o.Name) }

// Objects are those of a topic, without those of its ladder: the main queue, and then what the plan
// declares.
func (t Topic) Objects() []Object {
	return append([]Object{{Name: t.Plan.Queue, Role: RoleMain, Topic: t}}, objects(t, "", t.Plan,
		func(q topology.Queue,
		) Role {
			switch {
			case q.Name == t.Plan.DeadLetterQueue:
				return RoleDeadLetter
			case q.Landing:
				return RoleLanding
			default:
				return RoleRetry
			}
		})...)
}

// Objects are those of a ladder.
func (l Ladder) Objects() []Object {
	return objects(l.Topic, l.Name(), l.Shared(), func(q topology.Queue) Role {
		if q.Delay == 0 {
			return RoleUnroutable
		}
		return RoleDelay
	})
}

func objects(t Topic, ladder string, plan topology.Plan, role func(topology.Queue) Role) (all []Object) {
	for i, x := range plan.Exchanges {
		all = append(all, Object{Name: x.Name, Role: RoleExchange, Topic: t, Ladder: ladder,
			Exchange: &plan.Exchanges[i]})
	}
	for i, q := range plan.Queues {
		o := Object{Name: q.Name, Role: role(q), Topic: t, Ladder: ladder, Queue: &plan.Queues[i]}
		if o.Role == RoleLanding {
			o.Target = topology.Target{Key: plan.Queue}
		}
		all = append(all, o)
	}
	for i, b := range plan.Bindings {
		all = append(all, Object{Name: b.Exchange + " -> " + b.Queue + b.ToExchange, Role: RoleBinding, Topic: t,
			Ladder: ladder, Binding: &plan.Bindings[i]})
	}
	return all
}

// Objects lists what topics and ladders should have, in these roles; all of them without any. One
// that topics share is there once, with the first of them.
func (f Facts) Objects(roles ...Role) []Object {
	var all, found []Object
	for _, t := range f.Topics {
		all = append(all, t.Objects()...)
	}
	for _, l := range f.Ladders() {
		all = append(all, l.Objects()...)
	}
	for _, l := range f.Others {
		all = append(all, f.Landing(l)...)
	}
	known := map[string]bool{}
	for _, o := range all {
		id := o.id()
		if known[id] || len(roles) > 0 && !slices.Contains(roles, o.Role) {
			continue
		}
		known[id] = true
		if o.IsQueue() {
			o.Is = f.Queues[o.Name]
		}
		found = append(found, o)
	}
	return found
}

// id tells objects apart.
func (o Object) id() string {
	switch {
	case o.Binding != nil:
		return fmt.Sprint(*o.Binding)
	case o.Exchange != nil:
		return "exchange " + o.Name
	default:
		return "queue " + o.Name
	}
}

// State is what was found of an object.
type State string

// The states.
const (
	Present  State = "present"  // as planned
	Missing  State = "missing"  // apply would create it, unless it is a main queue
	Conflict State = "conflict" // it is there, and different
	Untold   State = "unseen"   // it could not be seen whether it is there, or whether it is as planned
	Obsolete State = "obsolete" // a retry queue or a rejected exchange that nothing uses: see prune
	Created  State = "created"
	Planned  State = "planned" // nobody has looked
)

// Of is whether a queue or an exchange is there, and how it differs from its plan.
func (f Facts) Of(o Object) (exists Seen[bool], conflict Seen[*topology.ConflictError]) {
	if o.Exchange != nil {
		return f.Exchanges[o.Name].Exists, f.Exchanges[o.Name].Conflict
	}
	return f.Queues[o.Name].Exists, f.Queues[o.Name].Conflict
}

// State compares an object with what is there. The error is that of a conflict, or why it could not
// be compared.
func (f Facts) State(o Object) (State, error) {
	if o.Binding != nil {
		return f.stateOf(*o.Binding)
	}
	var exclusive *topology.ExclusiveError
	switch exists, conflict := f.Of(o); {
	case !exists.Known:
		return Untold, exists.Err
	case !exists.Value:
		return Missing, nil
	case o.Role == RoleMain:
		return Present, nil
	case conflict.Value != nil, errors.As(conflict.Err, &exclusive):
		return Conflict, conflict.Err
	case !conflict.Known:
		return Untold, conflict.Err
	default:
		return Present, nil
	}
}

// stateOf compares a binding. It is missing with its exchange, and with what is bound.
func (f Facts) stateOf(b topology.Binding) (State, error) {
	missing := func(exists Seen[bool]) bool { return exists.Known && !exists.Value }
	x := f.Exchanges[b.Exchange]
	switch {
	case missing(x.Exists), b.Queue != "" && missing(f.Queues[b.Queue].Exists),
		b.ToExchange != "" && missing(f.Exchanges[b.ToExchange].Exists):
		return Missing, nil
	case !x.Bindings.Known:
		return Untold, x.Bindings.Err
	case !f.Binds(b):
		return Missing, nil
	default:
		return Present, nil
	}
}

// Binds tells whether a binding is among those that its exchange has.
func (f Facts) Binds(b topology.Binding) bool {
	return slices.ContainsFunc(f.Exchanges[b.Exchange].Bindings.Value, func(a httpapi.Binding) bool {
		if a.Queue != b.Queue || a.ToExchange != b.ToExchange || a.Key != b.Key ||
			len(a.Arguments) != len(b.Arguments) {
			return false
		}
		for key, value := range b.Arguments {
			if a.Arguments[key] != value {
				return false
			}
		}
		return true
	})
}

// DeadLettering is where a queue dead-letters to.
type DeadLettering struct {
	Exchange, Key string
	// Set is true if it does. OwnKey is true if Key is its own; else messages keep theirs, which is
	// Key as far as they came by the default exchange.
	Set, OwnKey bool
}

// DeadLetteringOf reads it from the arguments of a queue that are in force.
func DeadLetteringOf(queue string, arguments amqp.Table) DeadLettering {
	var d DeadLettering
	d.Exchange, d.Set = arguments["x-dead-letter-exchange"].(string)
	if d.Key, d.OwnKey = arguments["x-dead-letter-routing-key"].(string); !d.OwnKey {
		d.Key = queue
	}
	return d
}

// Takes tells whether a binding of an exchange of this type takes what is dead-lettered. One with
// another key leads nowhere in direct exchanges; the others' keys and headers are not read.
func (d DeadLettering) Takes(exchangeType string, b httpapi.Binding) bool {
	return exchangeType != amqp.ExchangeDirect || !d.OwnKey || b.Key == d.Key
}

// Targets are the queues to which a queue with these arguments dead-letters.
func (f Facts) Targets(queue string, arguments amqp.Table) Seen[[]string] {
	d := DeadLetteringOf(queue, arguments)
	if d.Exchange == "" {
		return Known([]string{d.Key})
	}
	x := f.Exchanges[d.Exchange]
	if !x.Bindings.Known {
		return Unseen[[]string](x.Bindings.Why)
	}
	var queues []string
	for _, b := range x.Bindings.Value { // one to an exchange is not followed
		if b.Queue != "" && d.Takes(x.Type, b) && !slices.Contains(queues, b.Queue) {
			queues = append(queues, b.Queue)
		}
	}
	return Known(queues)
}
