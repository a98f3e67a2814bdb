package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// lookLanding looks for messages that are due and that their main queue does not take.
func lookLanding(f Facts) []Finding {
	found := f.detailed("whether landing queues drain", func(o object, q httpapi.Queue) []Finding {
		var n int64
		if q.Messages != nil {
			n = *q.Messages
		}
		if n = max(n, stuck(q)); n <= 0 {
			return nil
		}
		severity, why, fix := f.keeps(o)
		target := "main queue"
		if o.Target.Exchange != "" {
			target = "exchange"
		}
		return []Finding{{Severity: severity, Found: times(n, "message") + " due, " + why,
			Means: "the landing queue keeps them, and hands them over within 3 minutes after the " + target +
				" takes messages again. Other queues are not affected. Do not delete it: its messages would be lost",
			Fix: fix}}
	}, roleLanding)
	for _, l := range f.Others {
		switch bindings := f.Exchanges[l.Delivery()].Bindings; {
		case !bindings.Known:
			found = append(found, f.cannotSee(blind{bindings.Why: {"of " + l.Name()}}, "landing queues")...)
		case len(f.landing(l)) == mostLanding:
			why := fmt.Sprintf("doctor looks at %d of a ladder; amqpretry delays stat counts all", mostLanding)
			found = append(found, f.cannotSee(blind{why: {"of " + l.Name()}}, "further landing queues")...)
		}
	}
	return found
}

// keeps is what keeps the target of a landing queue from taking messages.
func (f Facts) keeps(landing object) (_ Severity, why, fix string) {
	if x := landing.Target.Exchange; x != "" {
		return Warning, fmt.Sprintf("and no queue behind the exchange %q has confirmed them, or there is none. This "+
				"may be temporary: run doctor again", x), f.ctl("list_bindings", "source_name", "destination_name",
				"routing_key")
	}
	return f.keepsMain(landing.Target.Key)
}

// keepsMain is what keeps a main queue from taking messages that come back.
//
// Upstream: a channel keeps refusing for a queue that was full.
func (f Facts) keepsMain(name string) (_ Severity, why, fix string) {
	exists, main := f.exists(name), f.Queues[name].Details
	switch {
	case exists.Known && !exists.Value:
		return Problem, fmt.Sprintf("and the main queue %q does not exist", name),
			"# start the service that consumes " + shell.Quote(name) + ": it declares it with its own arguments"
	case main.Known && (!slices.Contains(runs, main.Value.State) || main.Value.Type == amqp.QueueTypeQuorum &&
		len(main.Value.Members) > 0 && !main.Value.HasMajority()):
		return Problem, fmt.Sprintf("and the main queue %q is down", name),
			"# start its nodes\nrabbitmqctl cluster_status"
	case main.Known && full(main.Value):
		return Warning, fmt.Sprintf("and the main queue %q is full", name),
			"# consume from it, or raise its limit\n" + f.ctl("list_queues", "name", "messages", "consumers", "policy")
	case main.Known && f.mayStillRefuse(main.Value):
		return Warning, fmt.Sprintf("which the main queue %q has not confirmed, although it has room. RabbitMQ before "+
				"4.0 keeps refusing them after a length limit was removed, and accepts them after it was raised", name),
			"# Run doctor again: this may be temporary. If they stay, set a limit that is never reached:\n" +
				commented(f.raiseLimit(name))
	default:
		return Warning, fmt.Sprintf("which the main queue %q has not confirmed. This may be temporary: run doctor "+
			"again", name), f.ctl("list_queues", "name", "messages", "messages_ready", "state", "policy")
	}
}

// mayStillRefuse tells of a queue that may have had a length limit: one that dead-letters to it is
// not told that it has none any more.
func (f Facts) mayStillRefuse(q httpapi.Queue) bool {
	return q.Type == amqp.QueueTypeQuorum && rabbitmq.RefusesOn(f.Version)
}

// raiseLimit gives a queue a length limit that it does not reach, on top of its policies.
func (f Facts) raiseLimit(queue string) string {
	return f.onTop(queue, amqp.QueueMaxLenArg, 1_000_000_000, amqp.QueueOverflowArg, amqp.QueueOverflowRejectPublish)
}

// full tells whether a queue refuses messages because of its length.
func full(q httpapi.Queue) bool {
	arguments := effective(q)
	overflow, _ := arguments[amqp.QueueOverflowArg].(string)
	limit, limited := arguments["x-max-length"].(int64)

	return strings.HasPrefix(overflow, amqp.QueueOverflowRejectPublish) && limited && q.Messages != nil &&
		*q.Messages >= limit
}

// lookUnroutable looks for messages with exact delays that no target takes.
func lookUnroutable(f Facts) []Finding {
	var found []Finding
	hidden := blind{}
	for _, o := range f.objects(roleUnroutable) {
		if exists := f.exists(o.Name); !exists.Known {
			hidden.add(exists.Why, o.Name)
			continue
		}
		n := int64(o.Queue.Ready)
		if told := o.Queue.Details.Value.Messages; told != nil {
			n = max(n, *told)
		}
		if n <= 0 {
			continue
		}
		finding := Finding{Severity: Warning, Object: ladderLabel(o.Ladder),
			Found: times(n, "message") + " that no target takes" + f.forTargets(o.Name, n),
			Means: "their delay is over, and their main queue, its landing queue or its binding was deleted. They " +
				"stay until somebody sends them on or discards them",
			Fix: "# declare the target first (start its service). These show them, and send those of a queue on:\n" +
				f.amqpretry("delays show", "--ladder", o.Ladder) + "\n" +
				commented(f.amqpretry("delays send", "--ladder="+shell.Quote(o.Ladder), "--target", "QUEUE"))}
		found = append(found, finding)
	}
	return append(found, f.cannotSee(hidden, "whether delayed messages are unroutable")...)
}

// forTargets is how many of n messages are for which target, as far as anybody has looked.
func (f Facts) forTargets(queue string, n int64) string {
	targets := f.Unroutable[queue]
	if !targets.Known || len(targets.Value) == 0 {
		return ""
	}
	names := slices.SortedFunc(maps.Keys(targets.Value), func(a, b string) int {
		return cmp.Or(cmp.Compare(targets.Value[b], targets.Value[a]), strings.Compare(a, b))
	})
	var read int64
	for _, count := range targets.Value {
		read += int64(count)
	}
	of := ": "
	if read < n {
		of = fmt.Sprintf(": of the first %d: ", read)
	}
	var parts []string
	for i, name := range names {
		if i == mostParts {
			parts = append(parts, "…")
			break
		}
		parts = append(parts, fmt.Sprintf("%d for %s", targets.Value[name], name))
	}
	return of + strings.Join(parts, ", ")
}

// lookConfirmTimeout reminds of a setting of the broker that nobody can read from outside.
func lookConfirmTimeout(f Facts) []Finding {
	used := len(f.Others) > 0 || slices.ContainsFunc(f.Topics, func(t Topic) bool {
		return t.Plan.Ladder != nil || t.Policy.WithDefaults().Mode == config.ModeRetry && !t.Policy.ClassicQueues
	})
	if !used {
		return nil
	}
	return []Finding{{Severity: Note, Object: broker,
		Found: "dead_letter_worker_publisher_confirm_timeout is probably 3 minutes (the default); the broker does " +
			"not report it",
		Means: "after a main queue was missing, full or down, and after a broker with many queues was killed, " +
			"messages that are due wait up to that long. 5 to 10 seconds are better",
		Fix: "# in advanced.config of each node, in milliseconds; it takes effect at the next start:\n" +
			"#   [{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000}]}]."}}
}
