package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// Effective are the arguments of a queue as they are in force with its policies.
func Effective(q httpapi.Queue) amqp.Table { return amqp.Table(q.InForce()) }

// Difference is an argument that is not as a strategy needs it.
type Difference struct {
	// Argument such as x-overflow. Wanted and Found are nil for none.
	Argument      string
	Wanted, Found any
	// ByPolicy is true if a policy of the broker says Found.
	ByPolicy bool
}

// String is the difference in words.
func (d Difference) String() string {
	text := fmt.Sprintf("%s: wanted %s, found %s", d.Argument, Spelled(d.Wanted), Spelled(d.Found))
	if d.ByPolicy {
		text += ", from a policy of the broker"
	}
	return text
}

// FromPolicy tells whether a policy of the broker makes the difference.
func (d Difference) FromPolicy() bool { return d.ByPolicy && d.Found != nil }

// Spelled is a value as conflicts of the broker spell it.
func Spelled(value any) string {
	switch value {
	case nil:
		return "none"
	case "":
		return `""`
	default:
		return fmt.Sprint(value)
	}
}

// Differences lists in order what of a main queue, its arguments and its policies taken together,
// is not as the strategy of its plan needs it. Nothing is missing where the plan has no such
// strategy.
//
// With config.ProtectionArguments the service declares the arguments, and fails if the queue has
// others.
func Differences(plan topology.Plan, protect config.Protection, q httpapi.Queue) []Difference {
	if plan.MainArguments == nil {
		return nil
	}
	own := amqp.Table{}
	maps.Copy(own, q.Arguments)
	if q.Type != "" {
		own[amqp.QueueTypeArg] = q.Type
	}
	inForce := Effective(q)

	var all []Difference
	for _, argument := range slices.Sorted(maps.Keys(plan.MainArguments)) {
		wanted := plan.MainArguments[argument]
		only := amqp.Table{argument: wanted}
		_, byPolicy := q.Effective[strings.TrimPrefix(argument, "x-")]
		found := inForce[argument]
		switch declared := own[argument]; {
		case argument == "x-delivery-limit" && plan.KeepsLimit(declared):
		case protect != config.ProtectionPolicy && !contains(only, argument, declared):
			all = append(all, Difference{Argument: argument, Wanted: wanted, Found: declared})
		case argument == "x-delivery-limit" && isEnough(wanted, found):
		case !contains(only, argument, found):
			all = append(all, Difference{Argument: argument, Wanted: wanted, Found: found, ByPolicy: byPolicy})
		}
	}
	for _, argument := range plan.MainConflicts(inForce) {
		if _, needed := plan.MainArguments[argument]; needed {
			continue
		}
		_, declared := own[argument]
		all = append(all, Difference{Argument: argument, Found: inForce[argument], ByPolicy: !declared})
	}
	return all
}

// Differences of a main queue from what the strategy of its topic needs.
func (t Topic) Differences(q httpapi.Queue) []Difference { return Differences(t.Plan, t.Protect(), q) }

// contains tells whether a table has just this value.
func contains(table amqp.Table, argument string, value any) bool {
	if n, is := header.Integer(table[argument]); is {
		m, is := header.Integer(value)
		return is && n == m
	}
	return table[argument] == value
}

// isEnough tells of a delivery limit that is higher than the wanted one.
func isEnough(wanted, found any) bool {
	n, _ := header.Integer(wanted)
	m, given := header.Integer(found)
	return given && m >= n
}

// Policy is the policy of the broker that gives a main queue all that its strategy needs. ok is
// false if no policy can: for the strategy cycle, for a queue of another type, and where an
// argument of the queue says otherwise.
func Policy(plan topology.Plan, vhost string, q httpapi.Queue) (policy topology.BrokerPolicy, ok bool) {
	if q.Type != amqp.QueueTypeQuorum {
		return topology.BrokerPolicy{}, false
	}
	for argument, wanted := range plan.MainArguments {
		declared, given := q.Arguments[argument]
		if given && argument != amqp.QueueTypeArg && !contains(amqp.Table{argument: wanted}, argument, declared) {
			return topology.BrokerPolicy{}, false
		}
	}
	return plan.MainPolicy(vhost)
}
