package doctor

import (
	"fmt"
	"strings"
)

// check is one thing that is looked at.
type check struct {
	name string
	// fine is what is so when it finds nothing.
	fine string
	// queues is true if there is nothing to look at without topics.
	queues bool
	look   func(Facts) []Finding
}

// checks are all, in the order in which they are told.
var checks = []check{
	{"version", "RabbitMQ has a supported version", false, lookVersion},
	{"features", "quorum queues and at-least-once dead-lettering are available", false, lookFeatures},
	{"alarms", "no memory or disk alarm", false, lookAlarms},
	{"nodes", "all nodes run and see each other", false, lookNodes},
	{"permissions", "the user has the permissions of a consumer", true, lookPermissions},
	{"limits", "the virtual host has room for the queues", false, lookLimits},

	{"exists", "all queues and exchanges exist", true, lookExists},
	{"arguments", "queues and exchanges are declared as the policies say", true, lookArguments},
	{"bindings", "the retry exchanges lead to all queues", true, lookBindings},

	{"available", "all queues run, with a majority of their nodes", true, lookAvailable},
	{"types", "no classic queues", true, lookTypes},
	{"policies", "no policy of the broker weakens a promise", true, lookPolicies},
	{"delivery-limit", "no main queue drops messages at its delivery limit", true, lookDeliveryLimit},
	{"nack-rule", "no quorum main queue", true, lookNackRule},
	{"dead-letter-target", "messages that a main queue dead-letters reach a queue", true, lookTargets},
	{"stuck", "no messages are stuck on their way out of a queue", true, lookStuck},
	{"landing", "no landing queue holds messages that are due", true, lookLanding},
	{"unroutable", "no delayed message without a target", true, lookUnroutable},
	{"confirm-timeout", "no at-least-once dead-lettering, which this setting of the broker is about", true,
		lookConfirmTimeout},
	{"retry-consumers", "nobody consumes from retry queues", true, lookRetryConsumers},
	{"single-active-consumer", "no main queue relies on order", true, lookSingleActive},
	{"dead-letters", "no dead letters", true, lookDeadLetters},
	{"obsolete", "no retry queue that no policy uses", true, lookObsolete},
}

// diagnose judges what is known. It gives at least one finding for each check, but for those about queues where none
// was named.
func diagnose(f Facts) []Finding {
	var all []Finding
	for _, c := range checks {
		if c.queues && len(f.Topics) == 0 {
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

// about makes a finding one about the object, or about its ladder, of which it is a part.
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
func cannotSee(whys map[string][]string, what string) []Finding {
	var all []Finding
	for _, why := range sortedKeys(whys) {
		found := what
		if names := whys[why]; len(names) > 0 && names[0] != "" {
			found += " (" + strings.Join(names, ", ") + ")"
		}
		all = append(all, Finding{Severity: Unseen, Object: broker, Found: "not seen: " + found, Means: why})
	}
	return all
}

// blind collects what could not be seen, by reason.
type blind map[string][]string

func (b blind) add(why, name string) { b[why] = append(b[why], name) }
