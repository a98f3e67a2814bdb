package doctor

import (
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// runs are the states of a queue that works.
var runs = []string{"", "running", "idle", "flow"}

func lookAvailable(f Facts) []Finding {
	running := slices.DeleteFunc(slices.Clone(f.Nodes.Value), func(n httpapi.Node) bool { return !n.Running })
	return f.each("whether queues can be reached", func(_ inspect.Object, q httpapi.Queue) (found []Finding) {
		if !slices.Contains(runs, q.State) {
			found = append(found, f.says("available.state", "state", q.State, "node", orUnknown(q.Node)))
		}
		n := len(q.Members)
		if q.Type != amqp.QueueTypeQuorum || n == 0 {
			return found
		}
		if !q.HasMajority() {
			found = append(found, f.says("available.minority", "online", len(q.Online), "members", n, "queue", q.Name))
		}
		if n < 3 && len(running) >= 3 {
			var grow []string
			for _, node := range running {
				if !slices.Contains(q.Members, node.Name) {
					grow = append(grow,
						"rabbitmq-queues add_member --vhost "+shell.Quote(f.VHost)+" "+shell.Quote(q.Name)+" "+
							shell.Quote(node.Name))
				}
			}
			found = append(found, f.says("available.few", "members", n, "running", len(running),
				"fix", strings.Join(grow, "\n")))
		}
		return found
	})
}

func lookTypes(f Facts) []Finding {
	return f.each("types of queues", func(o inspect.Object, q httpapi.Queue) []Finding {
		main := f.Queues[o.Topic.Plan.Queue].Details
		switch {
		case q.Type == amqp.QueueTypeStream && o.Role == inspect.RoleMain:
			return []Finding{f.says("types.stream")}
		case q.Type != amqp.QueueTypeClassic:
			return nil
		case o.Role == inspect.RoleMain:
			return []Finding{f.says("types.main")}
		case o.Role != inspect.RoleRetry: // declared otherwise than planned: told by the check of arguments
			return nil
		case main.Known && main.Value.Type == amqp.QueueTypeQuorum:
			return []Finding{f.says("types.retry-quorum", "fix", f.apply(o.Topic))}
		default:
			return []Finding{f.says("types.retry")}
		}
	})
}

// lookOverflow looks for main queues whose own arguments limit their length, and that make room for
// new messages. The limits of policies are found with these.
func lookOverflow(f Facts) []Finding {
	return f.each("what full queues do", func(o inspect.Object, q httpapi.Queue) []Finding {
		if o.Topic.Plan.MainArguments != nil || !dropsHead(inspect.Effective(q)) { // a strategy has a check of its own
			return nil
		}
		for _, limit := range lengthLimits {
			if value, limited := q.Arguments[limit]; limited {
				return []Finding{f.says("overflow.argument", "limit", limit, "value", value,
					"fix", cli.Commented(f.onTop(o.Name, amqp.QueueOverflowArg, amqp.QueueOverflowRejectPublish)))}
			}
		}
		return nil
	}, inspect.RoleMain)
}

// manyStuck is how many messages that cannot be handed over keep all others of a queue from it.
const manyStuck = 32

func lookStuck(f Facts) []Finding {
	return f.each("messages on their way out", func(o inspect.Object, q httpapi.Queue) []Finding {
		n := stuck(q)
		if n <= 0 || o.Role == inspect.RoleLanding { // which has a check of its own
			return nil
		}
		finding := f.says("stuck.other", "n", cli.Times(n, "dead-lettered message"))
		switch {
		case o.Role == inspect.RoleDelay:
			finding = f.says("stuck.delay", "n", cli.Times(n, "dead-lettered message"))
		case o.Role == inspect.RoleRetry && !o.Queue.Shared: // else they may be those of any queue
			why := f.keepsMain(o.Topic.Plan.Queue)
			finding = f.says("stuck.retry", "n", cli.Times(n, "message"), "why", why.Found, "fix", why.Fix)
			finding.Severity = why.Severity
		}
		if n >= manyStuck {
			finding.Severity = Problem
			finding.Means += f.says("stuck.many").Means
		}
		return []Finding{finding}
	})
}

// stuck is how many messages a queue dead-letters without an answer.
func stuck(q httpapi.Queue) int64 {
	switch {
	case q.Undeliverable != nil && *q.Undeliverable > 0:
		return *q.Undeliverable
	case q.Undeliverable == nil && q.Messages != nil && q.Ready != nil && q.Unacked != nil &&
		q.Type == amqp.QueueTypeQuorum:
		return *q.Messages - *q.Ready - *q.Unacked - number(q.Delayed)
	default:
		return 0
	}
}

// number is what the management API has told; 0 if it has not.
func number(told *int64) int64 {
	if told == nil {
		return 0
	}
	return *told
}

func lookRetryConsumers(f Facts) []Finding {
	var found []Finding
	hidden := blind{}
	for _, o := range f.Objects(inspect.RoleRetry, inspect.RoleDelay, inspect.RoleLanding) {
		if !o.Is.Exists.Known && !o.Is.Details.Known {
			hidden.add(o.Is.Exists.Why, o.Name)
		}
		if n := max(int64(o.Is.Consumers), number(o.Is.Details.Value.Consumers)); n > 0 {
			found = append(found, f.says("retry-consumers.some", "n", cli.Times(n, "consumer")).about(o))
		}
	}
	return append(found, f.cannotSee(hidden, "consumers of retry queues")...)
}

func lookSingleActive(f Facts) []Finding {
	return f.each("arguments of main queues", func(_ inspect.Object, q httpapi.Queue) []Finding {
		if q.Arguments["x-single-active-consumer"] != true {
			return nil
		}
		return []Finding{f.says("single-active-consumer.set")}
	}, inspect.RoleMain)
}

func lookDeadLetters(f Facts) []Finding {
	var found []Finding
	hidden := blind{}
	for _, o := range f.Objects(inspect.RoleDeadLetter) {
		if rabbitmq.HoldsBack(f.Version) && !o.Is.Details.Known && o.Is.Ready == 0 && !gone(f.Exists(o.Name)) {
			hidden.add(o.Is.Details.Why+" (RabbitMQ "+f.Version+" may hold messages, which AMQP does not count)",
				o.Name)
		}
		if n := o.Is.Consumers; n > 0 {
			found = append(found, f.says("dead-letters.consumers", "n", cli.Times(n, "consumer")).about(o))
		}
		if n := max(int64(o.Is.Ready), number(o.Is.Details.Value.Messages)); n > 0 {
			found = append(found, f.says("dead-letters.messages", "n", cli.Times(n, "message"),
				"fix", f.AMQPRetry("dlq stat", o.Topic.Plan.Queue)).about(o))
		}
	}
	return append(found, f.cannotSee(hidden, "whether there are dead letters")...)
}

func quoted(name string) string { return fmt.Sprintf("%q", name) }
