package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// check is one thing that is looked at; rules.txt says what it finds.
type check struct {
	name string
	// of is what there must be for it to have something to look at.
	of   scope
	look func(Facts) []Finding
}

// scope is what a check is about.
type scope int

const (
	ofBroker scope = iota
	// ofTopics needs topics, and ofLadders topics or a ladder.
	ofTopics
	ofLadders
)

// has tells whether there is something of a scope to look at.
func (f Facts) has(of scope) bool {
	return of == ofBroker || len(f.Topics) > 0 || of == ofLadders && len(f.Others) > 0
}

// checks are all, in the order in which they are told.
var checks = []check{
	{"version", ofBroker, lookVersion},
	{"features", ofBroker, lookFeatures},
	{"alarms", ofBroker, lookAlarms},
	{"nodes", ofBroker, lookNodes},
	{"permissions", ofTopics, lookPermissions},
	{"limits", ofBroker, lookLimits},

	{"exists", ofLadders, lookExists},
	{"arguments", ofLadders, lookArguments},
	{"bindings", ofLadders, lookBindings},

	{"available", ofLadders, lookAvailable},
	{"types", ofTopics, lookTypes},
	{"overflow", ofTopics, lookOverflow},
	{"policies", ofLadders, lookPolicies},
	{"delivery-limit", ofTopics, lookDeliveryLimit},
	{"strategy", ofTopics, lookStrategy},
	{"nack-rule", ofTopics, lookNackRule},
	{"dead-letter-target", ofTopics, lookTargets},
	{"stuck", ofLadders, lookStuck},
	{"landing", ofLadders, lookLanding},
	{"unroutable", ofLadders, lookUnroutable},
	{"confirm-timeout", ofLadders, lookConfirmTimeout},
	{"retry-consumers", ofLadders, lookRetryConsumers},
	{"single-active-consumer", ofTopics, lookSingleActive},
	{"dead-letters", ofTopics, lookDeadLetters},
	{"obsolete", ofTopics, lookObsolete},
}

// diagnose judges what is known. It gives at least one finding for each check that has something to
// look at.
func diagnose(f Facts) []Finding {
	var all []Finding
	for _, c := range checks {
		if !f.has(c.of) && (c.name != "exists" || !f.Absent) {
			continue
		}
		found := merged(c.look(f))
		if len(found) == 0 {
			found = []Finding{{Severity: OK, Found: fine[c.name]}}
		}
		for _, finding := range found {
			finding.Check = c.name
			if finding.Object == "" {
				finding.Object = broker
			}
			all = append(all, finding.tidy())
		}
	}
	return sorted(all)
}

// broker is the object of findings about all of it.
const broker = "broker"

// about makes a finding one about an object, or about the ladder that it belongs to.
func (f Finding) about(o inspect.Object) Finding {
	switch {
	case f.Object != "":
	case o.Ladder != "":
		f.of, f.part = ladderLabel(o.Ladder), o.Label()
	default:
		f.Object = o.Label()
	}
	return f
}

func ladderLabel(name string) string { return fmt.Sprintf("ladder %q", name) }

// each calls look for every queue that is there and of which the management API has told, and
// collects why not.
func (f Facts) each(what string, look func(inspect.Object, httpapi.Queue) []Finding, roles ...inspect.Role) []Finding {
	return f.judged(what, false, look, roles...)
}

// withPolicies is each for what depends on the policies of the broker.
func (f Facts) withPolicies(what string, look func(inspect.Object, httpapi.Queue) []Finding, roles ...inspect.Role,
) []Finding {
	return f.judged(what, true, look, roles...)
}

// noStatistics is why policies cannot be told of a queue that is there.
const noStatistics = "the management API has no statistics of them yet, or collects none: run doctor again in 10 " +
	"seconds"

// oldStatistics is why they may be others.
const oldStatistics = "the management API has renewed no statistics of them for 12 seconds, and they differ from " +
	"the policies of the broker: the findings are those of the old statistics"

func (f Facts) judged(what string, policies bool, look func(inspect.Object, httpapi.Queue) []Finding,
	roles ...inspect.Role) []Finding {
	var found []Finding
	hidden := blind{}
	for _, o := range f.queues(roles...) {
		switch {
		case gone(f.Exists(o.Name)):
		case !o.Is.Details.Known:
			hidden.add(o.Is.Details.Why, o.Name)
		case policies && o.Is.Details.Value.Effective == nil:
			hidden.add(noStatistics, o.Name)
		default:
			if policies && o.Is.Stale {
				hidden.add(oldStatistics, o.Name)
			}
			for _, finding := range look(o, o.Is.Details.Value) {
				found = append(found, finding.about(o))
			}
		}
	}
	return append(found, f.cannotSee(hidden, what)...)
}

// queues are those in these roles; all of them without any.
func (f Facts) queues(roles ...inspect.Role) []inspect.Object {
	return slices.DeleteFunc(f.Objects(roles...), func(o inspect.Object) bool { return !o.IsQueue() })
}

// exchanges are sorted by their names.
func (f Facts) exchanges() []inspect.Object {
	return slices.SortedFunc(slices.Values(f.Objects(inspect.RoleExchange)),
		func(a, b inspect.Object) int { return strings.Compare(a.Name, b.Name) })
}

func gone(exists inspect.Seen[bool]) bool { return exists.Known && !exists.Value }

// cannotSee is the finding of a check that could not look, once for each reason.
func (f Facts) cannotSee(whys blind, what string) []Finding {
	var all []Finding
	for _, why := range slices.Sorted(maps.Keys(whys)) {
		found := what
		if names := f.withoutParts(whys[why]); len(names) > 0 && names[0] != "" {
			found += " (" + strings.Join(names, ", ") + ")"
		}
		all = append(all, Finding{Severity: Unseen, Object: broker, Found: "not seen: " + found, Means: why})
	}
	return all
}

// withoutParts puts a ladder in the place of its objects if there are many of them.
func (f Facts) withoutParts(names []string) []string {
	parts := map[string]int{}
	for _, name := range names {
		parts[f.LadderOf(name)]++
	}
	var all []string
	for _, name := range names {
		ladder := f.LadderOf(name)
		if n := parts[ladder]; ladder != "" && n > mostParts {
			name = fmt.Sprintf("%d objects of %s", n, ladderLabel(ladder))
		}
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// blind collects the names of what could not be seen, by reason.
type blind map[string][]string

func (b blind) add(why, name string) { b[why] = append(b[why], name) }
