package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// check is one thing that is looked at.
type check struct {
	name string
	// fine is what is so when it finds nothing.
	fine string
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
	{"version", "RabbitMQ has a supported version", ofBroker, lookVersion},
	{"features", "quorum queues and at-least-once dead-lettering are available", ofBroker, lookFeatures},
	{"alarms", "no memory or disk alarm", ofBroker, lookAlarms},
	{"nodes", "all nodes run and see each other", ofBroker, lookNodes},
	{"permissions", "the user has the permissions of a consumer", ofTopics, lookPermissions},
	{"limits", "the virtual host has room for the queues", ofBroker, lookLimits},

	{"exists", "all queues and exchanges exist", ofLadders, lookExists},
	{"arguments", "queues and exchanges are declared as the policies say", ofLadders, lookArguments},
	{"bindings", "the retry exchanges lead to all queues", ofLadders, lookBindings},

	{"available", "all queues run, with a majority of their nodes", ofLadders, lookAvailable},
	{"types", "no classic queues", ofTopics, lookTypes},
	{"overflow", "no main queue with a length limit deletes messages to make room", ofTopics, lookOverflow},
	{"policies", "no policy of the broker weakens a promise", ofLadders, lookPolicies},
	{"delivery-limit", "no main queue drops messages at its delivery limit", ofTopics, lookDeliveryLimit},
	{"strategy", "all main queues are as the strategies of their policies need them", ofTopics, lookStrategy},
	{"nack-rule", "no quorum main queue", ofTopics, lookNackRule},
	{"dead-letter-target", "messages that a main queue dead-letters reach a queue", ofTopics, lookTargets},
	{"stuck", "no messages are stuck on their way out of a queue", ofLadders, lookStuck},
	{"landing", "no landing queue holds messages that are due", ofLadders, lookLanding},
	{"unroutable", "no delayed message without a target", ofLadders, lookUnroutable},
	{"confirm-timeout", "no at-least-once dead-lettering, which this setting of the broker is about", ofLadders,
		lookConfirmTimeout},
	{"retry-consumers", "nobody consumes from retry queues", ofLadders, lookRetryConsumers},
	{"single-active-consumer", "no main queue relies on order", ofTopics, lookSingleActive},
	{"dead-letters", "no dead letters", ofTopics, lookDeadLetters},
	{"obsolete", "no retry queue and no rejected exchange that no policy uses", ofTopics, lookObsolete},
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
			found = []Finding{{Severity: OK, Object: broker, Found: c.fine}}
		}
		for _, finding := range found {
			finding.Check = c.name
			all = append(all, finding.tidy())
		}
	}
	return sorted(all)
}

// broker is the object of findings about all of it.
const broker = "broker"

func (o object) label() string { return fmt.Sprintf("%s %q", o.Role, o.Name) }

// about makes a finding one about the object, or about the ladder that it belongs to.
func (o object) about(f Finding) Finding {
	if o.Ladder == "" {
		f.Object = o.label()
		return f
	}
	f.of, f.part = ladderLabel(o.Ladder), o.label()
	return f
}

func ladderLabel(name string) string { return fmt.Sprintf("ladder %q", name) }

// cannotSee is the finding of a check that could not look, once for each reason.
func (f Facts) cannotSee(whys blind, what string) []Finding {
	var all []Finding
	for _, why := range sortedKeys(whys) {
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
		parts[f.ladderOf(name)]++
	}
	var all []string
	for _, name := range names {
		ladder := f.ladderOf(name)
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
