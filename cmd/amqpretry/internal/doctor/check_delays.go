package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// lookLanding looks for messages that are due and that their main queue does not take.
func lookLanding(f Facts) []Finding {
	found := f.each("whether landing queues drain", func(o inspect.Object, q httpapi.Queue) []Finding {
		n := max(number(q.Messages), stuck(q))
		if n <= 0 {
			return nil
		}
		target, why := "main queue", f.keepsMain(o.Target.Key)
		if x := o.Target.Exchange; x != "" {
			target, why = "exchange", f.says("landing.exchange", "exchange", x)
		}
		finding := f.says("landing.due", "n", cli.Times(n, "message"), "why", why.Found, "target", target, "fix",
			why.Fix)
		finding.Severity = why.Severity
		return []Finding{finding}
	}, inspect.RoleLanding)
	for _, l := range f.Others {
		switch bindings := f.Exchanges[l.Delivery()].Bindings; {
		case !bindings.Known:
			found = append(found, f.cannotSee(blind{bindings.Why: {"of " + l.Name()}}, "landing queues")...)
		case len(f.Landing(l)) == inspect.MostLanding:
			why := fmt.Sprintf("doctor looks at %d of a ladder; amqpretry delays stat counts all", inspect.MostLanding)
			found = append(found, f.cannotSee(blind{why: {"of " + l.Name()}}, "further landing queues")...)
		}
	}
	return found
}

// keepsMain is what keeps a main queue from taking messages that come back.
//
// Upstream: a channel keeps refusing for a queue that was full.
func (f Facts) keepsMain(name string) Finding {
	main := f.Queues[name].Details
	q := main.Value
	quorum := q.Type == amqp.QueueTypeQuorum
	switch {
	case gone(f.Exists(name)):
		return f.says("landing.gone", "main", name)
	case main.Known && (!slices.Contains(runs, q.State) || quorum && len(q.Members) > 0 && !q.HasMajority()):
		return f.says("landing.down", "main", name)
	case main.Known && full(q):
		return f.says("landing.full", "main", name)
	case main.Known && quorum && rabbitmq.RefusesOn(f.Version):
		// It may have had a length limit: a queue that dead-letters to it is not told that it has
		// none any more. This one it does not reach.
		limit := f.onTop(name, amqp.QueueMaxLenArg, 1_000_000_000, amqp.QueueOverflowArg,
			amqp.QueueOverflowRejectPublish)
		return f.says("landing.refused", "main", name, "fix", cli.Commented(limit))
	default:
		return f.says("landing.busy", "main", name)
	}
}

// full tells whether a queue refuses messages because of its length.
func full(q httpapi.Queue) bool {
	arguments := inspect.Effective(q)
	overflow, _ := arguments[amqp.QueueOverflowArg].(string)
	limit, limited := arguments["x-max-length"].(int64)

	return strings.HasPrefix(overflow, amqp.QueueOverflowRejectPublish) && limited && q.Messages != nil &&
		*q.Messages >= limit
}

// lookUnroutable looks for messages with exact delays that no target takes.
func lookUnroutable(f Facts) []Finding {
	var found []Finding
	hidden := blind{}
	for _, o := range f.Objects(inspect.RoleUnroutable) {
		if exists := f.Exists(o.Name); !exists.Known {
			hidden.add(exists.Why, o.Name)
			continue
		}
		n := max(int64(o.Is.Ready), number(o.Is.Details.Value.Messages))
		if n <= 0 {
			continue
		}
		finding := f.says("unroutable.messages", "n", cli.Times(n, "message"), "targets", f.forTargets(o.Name, n),
			"show", f.AMQPRetry("delays unroutable list", "--ladder", o.Ladder),
			"send", cli.Commented(f.AMQPRetry("delays unroutable send", "--ladder="+shell.Quote(o.Ladder), "--target",
				"QUEUE")))
		finding.Object = ladderLabel(o.Ladder)
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
	var parts []string
	for i, name := range names {
		read += int64(targets.Value[name])
		switch {
		case i < mostParts:
			parts = append(parts, fmt.Sprintf("%d for %s", targets.Value[name], name))
		case i == mostParts:
			parts = append(parts, "…")
		}
	}
	of := ": "
	if read < n {
		of = fmt.Sprintf(": of the first %d: ", read)
	}
	return of + strings.Join(parts, ", ")
}

// lookConfirmTimeout reminds of a setting of the broker that nobody can read from outside.
func lookConfirmTimeout(f Facts) []Finding {
	used := len(f.Others) > 0 || slices.ContainsFunc(f.Topics, func(t inspect.Topic) bool {
		return t.Plan.Ladder != nil || t.Policy.WithDefaults().Mode == config.ModeRetry && !t.Policy.ClassicQueues
	})
	if !used {
		return nil
	}
	return []Finding{f.says("confirm-timeout.default")}
}
