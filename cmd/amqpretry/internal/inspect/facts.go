// Package inspect gathers what is known of main queues and of the broker: what should be there
// according to the policies of topics, as objects with a role; what is there, as AMQP and the
// management API tell it; and the state of each object, which compares the two.
package inspect

import (
	"slices"
	"strings"

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
	// Err is the error behind Why, or that of a conflict.
	Err error
}

// Known is what was seen.
func Known[T any](value T) Seen[T] { return Seen[T]{Value: value, Known: true} }

// Unseen is why nothing was seen.
func Unseen[T any](why string) Seen[T] { return Seen[T]{Why: why} }

func failed[T any](err error) Seen[T] { return Seen[T]{Why: err.Error(), Err: err} }

// Facts are all that is known.
type Facts struct {
	// VHost and User of the connection; Version of the broker.
	VHost, User, Version string
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
	// Obsolete is what no policy of Topics uses.
	Obsolete Seen[retire.Found]

	// Queues are those of the topics, and those to which main queues dead-letter.
	Queues map[string]Queue
	// Exchanges are those of the topics, and those by which main queues and these others
	// dead-letter.
	Exchanges map[string]Exchange
	// Unroutable are how many messages of the queues for unroutable messages are for which target,
	// by queue, as far as anybody has looked into them.
	Unroutable map[string]Seen[map[string]int]
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

// Exists tells whether a queue is there, as far as anybody has looked.
func (f Facts) Exists(queue string) Seen[bool] {
	if q, looked := f.Queues[queue]; looked && q.Exists.Known {
		return q.Exists
	}
	if !f.All.Known {
		return Unseen[bool](f.All.Why)
	}
	return Known(slices.ContainsFunc(f.All.Value, func(q httpapi.Queue) bool { return q.Name == queue }))
}

// Ladder is what topics with exact delays, or publishers of messages with a delay, share.
type Ladder struct {
	*topology.Ladder
	// Topic is the first of them; zero for those of Others.
	Topic Topic
}

// Ladders lists those of all topics, each once, and Others.
func (f Facts) Ladders() []Ladder {
	var all []Ladder
	for _, t := range f.Topics {
		of := t.Plan.Ladder
		if of == nil || slices.ContainsFunc(all, func(l Ladder) bool { return l.Name() == of.Name() }) {
			continue
		}
		all = append(all, Ladder{of, t})
	}
	for _, l := range f.Others {
		all = append(all, Ladder{Ladder: &l})
	}
	return all
}

// LadderOf is the name of the ladder that an object belongs to; empty for any other object.
func (f Facts) LadderOf(name string) string {
	for _, l := range f.Ladders() {
		if strings.HasPrefix(name, l.Name()+".") {
			return l.Name()
		}
	}
	return ""
}

// MostLanding is how many landing queues of a ladder are looked at: each takes several questions.
const MostLanding = 200

// Landing are the landing queues of a ladder, by the bindings of its delivery exchange, up to
// MostLanding.
func (f Facts) Landing(l topology.Ladder) []Object {
	var all []Object
	for _, b := range f.Exchanges[l.Delivery()].Bindings.Value {
		target, known := LandingTarget(l, b)
		if !known || b.Queue == "" {
			continue
		}
		plan, err := l.Of(target, f.Names)
		if err != nil { // no service can declare it
			continue
		}
		planned := plan.Queues[0]
		planned.Name = b.Queue // services may have other Names
		all = append(all, Object{Name: b.Queue, Role: RoleLanding, Queue: &planned, Target: target,
			LandingLadder: l.Name()})
		if len(all) == MostLanding {
			break
		}
	}
	return all
}

// LandingTarget is the target of a landing queue, by its binding to the delivery exchange. The key
// of that is the key of a message with any digits.
func LandingTarget(l topology.Ladder, b httpapi.Binding) (topology.Target, bool) {
	levels := l.Config.Levels
	rest, is := strings.CutPrefix(b.Key, strings.Repeat("*.", levels))
	target, _, known := l.ParseKey(strings.Repeat("0.", levels) + rest)
	return target, is && known
}
