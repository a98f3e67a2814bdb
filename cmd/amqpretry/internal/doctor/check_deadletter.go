package doctor

import (
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

func lookDeliveryLimit(f Facts) []Finding {
	return f.withPolicies("delivery limits of main queues", f.dropsAtLimit, inspect.RoleMain)
}

func (f Facts) dropsAtLimit(o inspect.Object, q httpapi.Queue) []Finding {
	limit, drops := rabbitmq.DropLimit(inspect.Effective(q), f.Version)
	if !drops || o.Topic.Plan.MainArguments != nil { // which the check of strategies compares
		return nil
	}
	return []Finding{f.says("delivery-limit.drops", "limit", limit, "counts", f.counts(), "fix", f.protectCommand(o))}
}

// counts is what raises the count that the delivery limit is about.
func (f Facts) counts() string {
	if rabbitmq.CountsFailuresOnly(f.Version) {
		return f.says("nack-rule.counts-failures").Means
	}
	return f.says("nack-rule.counts").Means
}

func lookNackRule(f Facts) []Finding {
	return f.each("types of main queues", func(_ inspect.Object, q httpapi.Queue) []Finding {
		if q.Type != amqp.QueueTypeQuorum {
			return nil
		}
		return []Finding{f.says("nack-rule.quorum", "counts", f.counts())}
	}, inspect.RoleMain)
}

// protectCommand is what protects a main queue, and takes the harmful keys from its policies.
func (f Facts) protectCommand(o inspect.Object) string {
	command := f.policyFix([]inspect.Object{o}, true)
	if !gone(f.Exists(f.deadLetterQueue(o.Topic))) {
		return command
	}
	declare := f.makeDeadLetterQueue(o.Topic)
	if o.Topic.Plan.MainArguments != nil { // the main queue is in conflict until then
		declare += " || test $? = 4"
	}
	return declare + " &&\n" + command
}

// lacksProtection tells whether a finding about a main queue is fixed by protectCommand.
func (f Facts) lacksProtection(o inspect.Object, q httpapi.Queue) bool {
	protects := f.protectCommand(o)
	return slices.ContainsFunc(append(f.dropsAtLimit(o, q), f.deadLettersTo(o, q)...),
		func(found Finding) bool { return found.Fix == protects })
}

// makeDeadLetterQueue declares it; under the mode off, whose plan does not have it, as the other
// modes would.
func (f Facts) makeDeadLetterQueue(t inspect.Topic) string {
	if t.Plan.DeadLetterQueue != "" {
		return f.apply(t)
	}
	return f.makeTargets(t)
}

// makeTargets declares where a main queue dead-letters to by its own arguments.
func (f Facts) makeTargets(t inspect.Topic) string {
	return f.topology("apply --dead-letter-targets", t)
}

// lookTargets follows what main queues dead-letter by themselves: where it goes, and whether it
// comes back without anybody's doing.
func lookTargets(f Facts) []Finding {
	return f.withPolicies("where main queues dead-letter to", f.deadLettersTo, inspect.RoleMain)
}

func (f Facts) deadLettersTo(o inspect.Object, q httpapi.Queue) []Finding {
	arguments := inspect.Effective(q)
	d := inspect.DeadLetteringOf(q.Name, arguments)
	if !d.Set || o.Topic.Plan.Strategy == config.StrategyCycle {
		return nil // under a cycle the checks of strategies, exchanges and bindings tell
	}
	lost := "dead-letter-target.lost"
	if arguments["x-dead-letter-strategy"] == "at-least-once" {
		lost = "dead-letter-target.stay"
	}
	says := func(rule, target, fix string) Finding {
		finding := f.says("dead-letter-target."+rule, "exchange", d.Exchange, "target", target, "fix", fix)
		if rule != "cycle" {
			finding.Means = f.says(lost).Means
		}
		return finding
	}
	targets := f.Targets(q.Name, arguments)
	switch {
	case d.Exchange != "" && gone(f.Exchanges[d.Exchange].Exists):
		return []Finding{says("exchange", "", f.makeTarget(o))}
	case !targets.Known:
		return f.cannotSee(blind{targets.Why: {o.Name}}, "where main queues dead-letter to")
	case len(targets.Value) == 0:
		return []Finding{says("nowhere", "", f.makeTarget(o))}
	}
	var found []Finding
	for _, target := range targets.Value {
		switch {
		case gone(f.Exists(target)) && target == f.deadLetterQueue(o.Topic):
			found = append(found, says("queue", target, f.makeDeadLetterQueue(o.Topic)))
		case gone(f.Exists(target)):
			found = append(found, says("queue", target, f.makeTarget(o)))
		case f.comesBack(target, q.Name) && ofPolicy(q):
			found = append(found, says("cycle", target, f.protectCommand(o)))
		case f.comesBack(target, q.Name):
			found = append(found, says("cycle", target, f.says("dead-letter-target.argument").Fix))
		}
	}
	return found
}

// comesBack tells whether a queue has a TTL and dead-letters to another.
func (f Facts) comesBack(queue, to string) bool {
	details := f.Queues[queue].Details
	arguments := inspect.Effective(details.Value)
	_, expires := arguments[amqp.QueueMessageTTLArg]
	d := inspect.DeadLetteringOf(queue, arguments)
	if !details.Known || !expires || !d.Set || !d.OwnKey && d.Exchange == "" {
		return false // without a key of its own it keeps the one by which it was dead-lettered: its name
	}
	return slices.Contains(f.Targets(queue, arguments).Value, to)
}

// ofPolicy tells whether the dead-letter exchange of a queue comes from a policy, which another one
// can replace.
func ofPolicy(q httpapi.Queue) bool {
	_, own := q.Arguments["x-dead-letter-exchange"]
	return !own
}

// makeTarget lets what a main queue dead-letters arrive somewhere.
func (f Facts) makeTarget(o inspect.Object) string {
	if ofPolicy(o.Is.Details.Value) {
		return f.protectCommand(o)
	}
	return f.makeTargets(o.Topic)
}
