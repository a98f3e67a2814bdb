package doctor

import (
	"slices"
	"strings"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
)

// Seen is what a look has shown, or why it has shown nothing. The zero Seen was not looked at.
type Seen[T any] struct {
	Value T
	// Known is true if Value is what there is. If not, Why says what was in the way.
	Known bool
	Why   string
}

func seen[T any](value T) Seen[T] { return Seen[T]{Value: value, Known: true} }

func unseen[T any](why string) Seen[T] { return Seen[T]{Why: why} }

// Facts are all that is known of a broker when it is judged.
type Facts struct {
	// VHost and User of the connection; Version of the broker.
	VHost, User, Version string
	// ByFlag is true if the broker's URI was given as a flag, which a line to be pasted cannot
	// repeat.
	ByFlag bool
	// VHostByFlag is true if the virtual host was: the URI may have another one.
	VHostByFlag bool
	// PolicyFile is the one that Topics are from; empty for the library's default policy.
	PolicyFile string
	// Names of the services.
	Names  topology.Names
	Topics []Topic
	// Named is the ladder that --ladder names; nil without it.
	Named *topology.Ladder
	// Others are the ladders to check that no policy of Topics uses, such as those of delayed
	// publishing: Named, or else the default ladders that the broker has.
	Others []topology.Ladder
	// Absent is true if the broker has nothing of Named.
	Absent bool

	// Ended is why not everything was looked at: ^C, or a lost connection; nil otherwise.
	Ended error

	// Blocked is why the broker takes no messages; "" when it does.
	Blocked Seen[string]
	// Refused are the permissions that the user lacks, as the broker said when it was asked for
	// them.
	Refused Seen[[]Permission]
	// Granted are the user's permissions as they are set.
	Granted Seen[httpapi.Permissions]

	Nodes                      Seen[[]httpapi.Node]
	Flags                      Seen[[]httpapi.FeatureFlag]
	Limits                     Seen[map[string]int64]
	Policies, OperatorPolicies Seen[[]httpapi.Policy]
	// All are the queues of the virtual host, without statistics.
	All Seen[[]httpapi.Queue]
	// Obsolete are retry queues that no policy of Topics uses.
	Obsolete Seen[[]retire.Queue]
	// ObsoleteExchanges are rejected exchanges that nothing uses.
	ObsoleteExchanges Seen[[]retire.Exchange]

	// Queues are those of the topics, and those to which main queues dead-letter.
	Queues map[string]Queue
	// Exchanges are those of the topics, and those by which main queues and these others
	// dead-letter.
	Exchanges map[string]Exchange
	// Unroutable are how many messages of the queues for unroutable messages are for which target,
	// by queue, as far as anybody has looked into them.
	Unroutable map[string]Seen[map[string]int]
}

// Topic is a main queue with its policy and its plan.
type Topic struct {
	Name   string
	Policy config.Policy
	Plan   topology.Plan
}

// Queue is what is known of one.
type Queue struct {
	Exists Seen[bool]
	// Ready and Consumers as AMQP tells them of a queue that exists.
	Ready, Consumers int
	// Conflict is how it differs from the plan; nil if it does not.
	Conflict Seen[*topology.ConflictError]
	Details  Seen[httpapi.Queue]
	// Stale is true if its statistics are older than the first question about them.
	Stale bool
}

// Exchange is what is known of one.
type Exchange struct {
	Exists   Seen[bool]
	Conflict Seen[*topology.ConflictError]
	// Type as the management API tells it; "" when it does not, or there is none.
	Type string
	// Bindings to queues and exchanges.
	Bindings Seen[[]httpapi.Binding]
}

// role is what a queue is for.
type role string

const (
	roleMain       role = "main queue"
	roleRetry      role = "retry queue"
	roleDeadLetter role = "dead-letter queue"
	roleLanding    role = "landing queue"
	// roleDelay and roleUnroutable are those of a ladder.
	roleDelay      role = "delay queue"
	roleUnroutable role = "queue for unroutable messages"
)

// object is a queue of a topic.
type object struct {
	Name  string
	Role  role
	Topic Topic
	// Planned is its part of the plan; nil for the main queue, which no plan has.
	Planned *topology.Queue
	Queue   Queue
	// Target of a landing queue, and the name of its ladder if no topic has it.
	Target        topology.Target
	LandingLadder string
	// Ladder is the name of the one that it is a part of; empty for queues of a topic.
	Ladder string
}

// objects lists the queues of all topics; one that topics share is there once, with the first of
// them.
func (f Facts) objects(roles ...role) []object {
	var all []object
	known := map[string]bool{}
	add := func(o object) {
		if known[o.Name] || len(roles) > 0 && !slices.Contains(roles, o.Role) {
			return
		}
		known[o.Name] = true
		o.Queue = f.Queues[o.Name]
		all = append(all, o)
	}
	for _, t := range f.Topics {
		add(object{Name: t.Plan.Queue, Role: roleMain, Topic: t})
		for i, q := range t.Plan.Queues {
			planned := object{Name: q.Name, Role: roleRetry, Topic: t, Planned: &t.Plan.Queues[i]}
			switch {
			case q.Name == t.Plan.DeadLetterQueue:
				planned.Role = roleDeadLetter
			case q.Landing:
				planned.Role, planned.Target = roleLanding, topology.Target{Key: t.Plan.Queue}
			}
			add(planned)
		}
	}
	for _, l := range f.ladders() {
		queues := l.of.Shared().Queues
		for i, q := range queues {
			planned := object{Name: q.Name, Role: roleDelay, Topic: l.topic, Planned: &queues[i], Ladder: l.name}
			if q.Delay == 0 {
				planned.Role = roleUnroutable
			}
			add(planned)
		}
	}
	for _, l := range f.Others {
		for _, o := range f.landing(l) {
			add(o)
		}
	}
	return all
}

// landing are the landing queues of a ladder, by the bindings of its delivery exchange, up to
// mostLanding.
func (f Facts) landing(l topology.Ladder) []object {
	var all []object
	levels := l.Config.Levels
	for _, b := range f.Exchanges[l.Delivery()].Bindings.Value {
		// The key of a binding is that of a message with any digits.
		rest, is := strings.CutPrefix(b.Key, strings.Repeat("*.", levels))
		target, _, known := l.ParseKey(strings.Repeat("0.", levels) + rest)
		if !is || !known || b.Queue == "" {
			continue
		}
		plan, err := l.Of(target, f.Names)
		if err != nil { // no service can declare it
			continue
		}
		planned := plan.Queues[0]
		planned.Name = b.Queue // services may have other Names
		all = append(all, object{Name: b.Queue, Role: roleLanding, Planned: &planned, Target: target,
			LandingLadder: l.Name()})
		if len(all) == mostLanding {
			break
		}
	}
	return all
}

// mostLanding is how many landing queues of a ladder are looked at: each takes several questions.
const mostLanding = 200

// ladder is what topics with exact delays, or publishers of messages with a delay, share.
type ladder struct {
	name  string
	topic Topic // the first of them; zero for those of Others
	of    *topology.Ladder
}

// ladders lists those of all topics, each once, and Others.
func (f Facts) ladders() []ladder {
	var all []ladder
	for _, t := range f.Topics {
		of := t.Plan.Ladder
		if of == nil || slices.ContainsFunc(all, func(l ladder) bool { return l.name == of.Name() }) {
			continue
		}
		all = append(all, ladder{of.Name(), t, of})
	}
	for _, l := range f.Others {
		all = append(all, ladder{name: l.Name(), of: &l})
	}
	return all
}

// exists tells whether a queue is there, as far as anybody has looked.
func (f Facts) exists(queue string) Seen[bool] {
	if q, looked := f.Queues[queue]; looked && q.Exists.Known {
		return q.Exists
	}
	if !f.All.Known {
		return unseen[bool](f.All.Why)
	}
	return seen(slices.ContainsFunc(f.All.Value, func(q httpapi.Queue) bool { return q.Name == queue }))
}
