package doctor

import (
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

func lookDeliveryLimit(f Facts) []Finding {
	return f.withPolicies("delivery limits of main queues", f.dropsAtLimit, roleMain)
}

func (f Facts) dropsAtLimit(o object, q httpapi.Queue) []Finding {
	limit, drops := rabbitmq.DropLimit(effective(q), f.Version)
	if !drops || o.Topic.Plan.MainArguments != nil { // which the check of strategies compares
		return nil
	}
	return []Finding{{Severity: Problem, Found: fmt.Sprintf("delivery limit %s, and no dead-letter exchange", limit),
		Means: "the broker deletes a message that returns more often. " + counts(f.Version),
		Fix:   f.protectCommand(o)}}
}

// protectCommand is what protects a main queue, and takes the harmful keys from its policies.
func (f Facts) protectCommand(o object) string {
	return f.withDeadLetterQueue(o, f.policyFix([]object{o}, true))
}

// lacksProtection tells whether a finding about a main queue is fixed by protectCommand.
func (f Facts) lacksProtection(o object, q httpapi.Queue) bool {
	protects := f.protectCommand(o)
	return slices.ContainsFunc(append(f.dropsAtLimit(o, q), f.deadLettersTo(o, q)...),
		func(found Finding) bool { return found.Fix == protects })
}

// withDeadLetterQueue puts before a command what it takes to have the dead-letter queue.
func (f Facts) withDeadLetterQueue(o object, command string) string {
	if exists := f.exists(f.deadLetterQueue(o.Topic)); exists.Known && !exists.Value {
		declare := f.makeDeadLetterQueue(o.Topic)
		if o.Topic.Plan.MainArguments != nil { // the main queue is in conflict until then
			declare += " || test $? = 4"
		}
		return declare + " &&\n" + command
	}
	return command
}

// makeDeadLetterQueue declares it; under the mode off, whose plan does not have it, as the other
// modes would.
func (f Facts) makeDeadLetterQueue(t Topic) string {
	if t.Plan.DeadLetterQueue != "" {
		return f.apply(t)
	}
	return f.makeTargets(t)
}

// makeTargets declares where a main queue dead-letters to by its own arguments.
func (f Facts) makeTargets(t Topic) string { return f.topology("apply --dead-letter-targets", t) }

// counts is what raises the count that the delivery limit is about.
func counts(version string) string {
	const libraryForwards = "Retries of this library do not count as returns"
	if rabbitmq.CountsFailuresOnly(version) {
		return libraryForwards + ". Rejects, killed consumers and lost connections count. Since RabbitMQ 4.3 a nack " +
			"does not count, so a consumer that nacks gets the same message for ever"
	}
	return libraryForwards + ". Nacks, rejects, killed consumers and lost connections count"
}

func lookNackRule(f Facts) []Finding {
	return f.detailed("types of main queues", func(_ object, q httpapi.Queue) []Finding {
		if q.Type != amqp.QueueTypeQuorum {
			return nil
		}
		return []Finding{{Severity: Note, Found: "RabbitMQ " + f.Version + " counts deliveries of this quorum queue",
			Means: counts(f.Version)}}
	}, roleMain)
}

// lookTargets follows what main queues dead-letter by themselves: where it goes, and whether it
// comes back without anybody's doing.
func lookTargets(f Facts) []Finding {
	return f.withPolicies("where main queues dead-letter to", f.deadLettersTo, roleMain)
}

func (f Facts) deadLettersTo(o object, q httpapi.Queue) []Finding {
	arguments := effective(q)
	exchange, set := arguments["x-dead-letter-exchange"].(string)
	if !set || o.Topic.Plan.Strategy == config.StrategyCycle {
		return nil // under a cycle the checks of strategies, exchanges and bindings tell
	}
	means := "messages that the queue dead-letters are lost"
	if arguments["x-dead-letter-strategy"] == "at-least-once" {
		means = "messages that the queue dead-letters stay in it, invisible to AMQP. After 32 of them it " +
			"dead-letters nothing else"
	}
	targets := f.targets(q, arguments)
	switch {
	case exchange != "" && f.Exchanges[exchange].Exists.Known && !f.Exchanges[exchange].Exists.Value:
		return []Finding{{Severity: Problem, Found: fmt.Sprintf("its dead-letter exchange %q does not exist",
			exchange), Means: means,
			Fix: f.makeTarget(o)}}
	case !targets.Known:
		return f.cannotSee(blind{targets.Why: {o.Name}}, "where main queues dead-letter to")
	case len(targets.Value) == 0:
		return []Finding{{Severity: Problem, Found: fmt.Sprintf("its dead-letter exchange %q leads to no queue",
			exchange), Means: means,
			Fix: f.makeTarget(o)}}
	}
	var found []Finding
	for _, target := range targets.Value {
		switch exists := f.exists(target); {
		case exists.Known && !exists.Value:
			found = append(found,
				Finding{Severity: Problem, Found: fmt.Sprintf("it dead-letters to the queue %q, which does not "+
					"exist", target),
					Means: means, Fix: f.makeQueue(o, target)})
		case f.comesBack(target, q.Name):
			found = append(found,
				Finding{Severity: Problem, Found: fmt.Sprintf("it dead-letters to the queue %q, which has a TTL "+
					"and dead-letters back", target),
					Means: "when a message reaches the delivery limit, RabbitMQ detects a cycle and deletes the " +
						"message",
					Fix: f.leadElsewhere(o, q)})
		}
	}
	return found
}

// targets are the queues to which a queue with these arguments dead-letters.
func (f Facts) targets(q httpapi.Queue, arguments amqp.Table) Seen[[]string] {
	exchange, _ := arguments["x-dead-letter-exchange"].(string)
	key, hasKey := arguments["x-dead-letter-routing-key"].(string)
	if exchange == "" {
		if !hasKey {
			key = q.Name // that of the message: as far as it came by the default exchange
		}
		return seen([]string{key})
	}
	bindings := f.Exchanges[exchange].Bindings
	if !bindings.Known {
		return unseen[[]string](bindings.Why)
	}
	var queues []string
	for _, b := range bindings.Value {
		if b.Queue == "" { // it leads on to an exchange, which is not followed
			continue
		}
		// A binding with another key leads nowhere in direct exchanges; the others' keys and
		// headers are not read here.
		if f.Exchanges[exchange].Type == amqp.ExchangeDirect && hasKey && b.Key != key ||
			slices.Contains(queues, b.Queue) {
			continue
		}
		queues = append(queues, b.Queue)
	}
	return seen(queues)
}

// comesBack tells whether a queue has a TTL and dead-letters to another.
func (f Facts) comesBack(queue, to string) bool {
	details := f.Queues[queue].Details
	if !details.Known {
		return false
	}
	arguments := effective(details.Value)
	_, expires := arguments[amqp.QueueMessageTTLArg]
	_, deadLetters := arguments["x-dead-letter-exchange"]
	if !expires || !deadLetters {
		return false
	}
	targets := f.targets(details.Value, arguments)
	if _, hasKey := arguments["x-dead-letter-routing-key"]; !hasKey && arguments["x-dead-letter-exchange"] == "" {
		return false // it keeps the key by which it was dead-lettered, which is its own name
	}
	return slices.Contains(targets.Value, to)
}

// ofPolicy tells whether the dead-letter exchange of a queue comes from a policy, which another one
// can replace.
func ofPolicy(q httpapi.Queue) bool {
	_, own := q.Arguments["x-dead-letter-exchange"]
	return !own
}

func (f Facts) leadElsewhere(o object, q httpapi.Queue) string {
	if ofPolicy(q) {
		return f.protectCommand(o)
	}
	return "# An argument of the queue sets this target, and RabbitMQ cannot change arguments. Move to a queue that " +
		"is declared without x-dead-letter-exchange,\n# or with protect: arguments in the policy. Until then, " +
		"messages that reach the delivery limit are lost."
}

// makeTarget lets what a main queue dead-letters arrive somewhere.
func (f Facts) makeTarget(o object) string {
	if ofPolicy(o.Queue.Details.Value) {
		return f.protectCommand(o)
	}
	return f.makeTargets(o.Topic)
}

func (f Facts) makeQueue(o object, queue string) string {
	if queue == f.deadLetterQueue(o.Topic) {
		return f.makeDeadLetterQueue(o.Topic)
	}
	return f.makeTarget(o)
}
