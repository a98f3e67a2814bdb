package doctor

import (
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/mainqueue"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// noStatistics is why policies cannot be told of a queue that is there.
const noStatistics = "the management API has no statistics of them yet, or collects none: run doctor again in 10 " +
	"seconds"

// oldStatistics is why they may be others.
const oldStatistics = "the management API has renewed no statistics of them for 12 seconds, and they differ from " +
	"the policies of the broker: the findings are those of the old statistics"

// detailed calls look for every queue that is there and of which the management API has told, and
// collects why not.
func (f Facts) detailed(what string, look func(object, httpapi.Queue) []Finding, roles ...role) []Finding {
	return f.each(what, false, look, roles...)
}

// withPolicies is detailed for what depends on the policies of the broker.
func (f Facts) withPolicies(what string, look func(object, httpapi.Queue) []Finding, roles ...role) []Finding {
	return f.each(what, true, look, roles...)
}

func (f Facts) each(what string, policies bool, look func(object, httpapi.Queue) []Finding,
	roles ...role) []Finding {
	var found []Finding
	hidden := blind{}
	for _, o := range f.objects(roles...) {
		exists := f.exists(o.Name)
		switch {
		case exists.Known && !exists.Value:
		case !o.Queue.Details.Known:
			hidden.add(o.Queue.Details.Why, o.Name)
		case policies && o.Queue.Details.Value.Effective == nil:
			hidden.add(noStatistics, o.Name)
		default:
			if policies && o.Queue.Stale {
				hidden.add(oldStatistics, o.Name)
			}
			for _, finding := range look(o, o.Queue.Details.Value) {
				if finding.Object == "" {
					finding = o.about(finding)
				}
				found = append(found, finding)
			}
		}
	}
	return append(found, f.cannotSee(hidden, what)...)
}

// runs are the states of a queue that works.
var runs = []string{"", "running", "idle", "flow"}

func lookAvailable(f Facts) []Finding {
	return f.detailed("whether queues can be reached", func(_ object, q httpapi.Queue) []Finding {
		var found []Finding
		quorum := q.Type == amqp.QueueTypeQuorum
		if !slices.Contains(runs, q.State) {
			found = append(found, Finding{Severity: Problem, Found: fmt.Sprintf("it is %s, on node %s", q.State,
				orUnknown(q.Node)),
				Means: "the queue accepts and delivers nothing. A classic queue returns with its node, and with its " +
					"durable messages",
				Fix: "# start its node\nrabbitmqctl cluster_status"})
		}
		if quorum && len(q.Members) > 0 && !q.HasMajority() {
			found = append(found, Finding{Severity: Problem,
				Found: fmt.Sprintf("%d of its %d nodes are available, which is no majority", len(q.Online),
					len(q.Members)),
				Means: "the queue neither confirms nor rejects publishes, and delivers nothing. Its messages are " +
					"safe: do not delete the queue",
				Fix: "# start its nodes\nrabbitmq-queues quorum_status --vhost " + shell.Quote(f.VHost) + " " +
					shell.Quote(q.Name)})
		}
		running := 0
		for _, n := range f.Nodes.Value {
			if n.Running {
				running++
			}
		}
		if quorum && len(q.Members) > 0 && len(q.Members) < 3 && running >= 3 {
			found = append(found,
				Finding{Severity: Warning, Found: fmt.Sprintf("it is on %d of %d nodes", len(q.Members), running),
					Means: "the queue is not available while one of these nodes is down, and is lost with the disk " +
						"of its only node",
					Fix: f.grow(q)})
		}
		return found
	})
}

// grow puts a queue on all nodes that run.
func (f Facts) grow(q httpapi.Queue) string {
	lines := ""
	for _, n := range f.Nodes.Value {
		if n.Running && !slices.Contains(q.Members, n.Name) {
			if lines != "" {
				lines += "\n"
			}
			lines += "rabbitmq-queues add_member --vhost " + shell.Quote(f.VHost) + " " + shell.Quote(q.Name) + " " +
				shell.Quote(n.Name)
		}
	}
	return lines
}

func lookTypes(f Facts) []Finding {
	return f.detailed("types of queues", func(o object, q httpapi.Queue) []Finding {
		if q.Type == amqp.QueueTypeStream && o.Role == roleMain {
			return []Finding{{Severity: Problem, Found: "it is a stream",
				Means: "a stream keeps its messages: each retry adds a message for all readers, and a consumer " +
					"that restarts skips the messages that it has not read",
				Fix: "# consume from a queue: bind one to the exchange that the stream is bound to"}}
		}
		if q.Type != amqp.QueueTypeClassic {
			return nil
		}
		switch o.Role {
		case roleMain:
			return []Finding{{Severity: Note, Found: "it is a classic queue",
				Means: "the queue is on one node, and not available while that node is down. It does not count " +
					"deliveries, so a message that crashes its consumer is delivered for ever. A broker policy " +
					"with a length limit deletes all messages beyond it at once, even with reject-publish"}}
		case roleRetry:
			finding := Finding{Severity: Note, Found: "it is a classic queue",
				Means: "the queue returns messages at most once. Messages that are due while the main queue is not " +
					"available are lost"}
			if main := f.Queues[o.Topic.Plan.Queue].Details; main.Known &&
				main.Value.Type == amqp.QueueTypeQuorum {
				finding.Severity = Warning
				finding.Found += " in front of a quorum main queue"
				finding.Means += ", as at each start of the broker"
				finding.Fix = "# take classic_queues: true out of the policy; the old queues stay until they are " +
					"empty. Then:\n" + f.apply(o.Topic)
			}
			return []Finding{finding}
		default:
			return nil // declared otherwise than planned: told by the check of arguments
		}
	})
}

// lookOverflow looks for main queues whose own arguments limit their length, and that make room for
// new messages. The limits of policies are found with these.
func lookOverflow(f Facts) []Finding {
	return f.detailed("what full queues do", func(o object, q httpapi.Queue) []Finding {
		if o.Topic.Plan.MainArguments != nil || !dropsHead(effective(q)) { // a strategy has a check of its own
			return nil
		}
		for _, limit := range []string{"x-max-length", "x-max-length-bytes"} {
			if value, limited := q.Arguments[limit]; limited {
				return []Finding{{
					Severity: Warning, Found: fmt.Sprintf("%s: %v, and overflow: drop-head", limit, value),
					Means: droppedUnhandled,
					Fix: "# A broker policy can override this. Add the keys of the policy that applies today:\n" +
						commented(f.onTop(o.Name, amqp.QueueOverflowArg, amqp.QueueOverflowRejectPublish)),
				}}
			}
		}
		return nil
	}, roleMain)
}

// effective are the arguments of a queue as they are in force.
func effective(q httpapi.Queue) amqp.Table { return mainqueue.Effective(q) }

// manyStuck is how many messages that cannot be handed over keep all others of a queue from it.
const manyStuck = 32

func lookStuck(f Facts) []Finding {
	return f.detailed("messages on their way out", func(o object, q httpapi.Queue) []Finding {
		n := stuck(q)
		if n <= 0 || o.Role == roleLanding { // which has a check of its own
			return nil
		}
		finding := Finding{Severity: Warning, Found: times(n, "dead-lettered message") +
			", not confirmed by the target",
			Means: "the queue keeps them, invisible to AMQP, and tries again every 3 minutes. This may be temporary: " +
				"run doctor again",
			Fix: "rabbitmqctl list_queues --vhost " + shell.Quote(f.VHost) + " name messages messages_ready state " +
				"policy"}
		if o.Role == roleDelay {
			finding.Means = "they are due, and the next exchange of the ladder does not take them: an exchange, a " +
				"queue or a binding is missing, or a landing queue is down. This may be temporary: run doctor again"
		}
		if o.Role == roleRetry && !o.Planned.Shared { // else they may be those of any queue
			var why string
			finding.Severity, why, finding.Fix = f.keepsMain(o.Topic.Plan.Queue)
			finding.Found = times(n, "message") + " due, " + why
			finding.Means = "the queue keeps them, invisible to AMQP, and returns them within 3 minutes after the " +
				"main queue takes messages again. Do not delete it: its messages would be lost"
		}
		if n >= manyStuck {
			finding.Severity = Problem
			finding.Means += fmt.Sprintf(". With %d or more of them it returns nothing else", manyStuck)
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
		stuck := *q.Messages - *q.Ready - *q.Unacked
		if q.Delayed != nil {
			stuck -= *q.Delayed
		}
		return stuck
	default:
		return 0
	}
}

func lookRetryConsumers(f Facts) []Finding {
	var found []Finding
	hidden := blind{}
	for _, o := range f.objects(roleRetry, roleDelay, roleLanding) {
		if exists := o.Queue.Exists; !exists.Known && !o.Queue.Details.Known {
			hidden.add(exists.Why, o.Name)
		}
		consumers := int64(o.Queue.Consumers)
		if told := o.Queue.Details.Value.Consumers; told != nil {
			consumers = max(consumers, *told)
		}
		if consumers > 0 {
			found = append(found, o.about(Finding{Severity: Problem,
				Found: times(consumers, "consumer"),
				Means: "they take waiting messages before their delay is over. Nothing should consume from the " +
					"queues in which messages wait",
				Fix: "# find the consumers, and stop them:\n" + f.ctl("list_consumers", "queue_name", "consumer_tag",
					"channel_pid") +
					"\nrabbitmqctl list_channels pid name user"}))
		}
	}
	return append(found, f.cannotSee(hidden, "consumers of retry queues")...)
}

func lookSingleActive(f Facts) []Finding {
	return f.detailed("arguments of main queues", func(_ object, q httpapi.Queue) []Finding {
		if q.Arguments["x-single-active-consumer"] != true {
			return nil
		}
		return []Finding{{Severity: Note, Found: "it has a single active consumer, which suggests that order matters",
			Means: "a retried message returns behind later ones, so retries change the order. Only one instance " +
				"consumes at a time"}}
	}, roleMain)
}

func lookDeadLetters(f Facts) []Finding {
	var found []Finding
	hidden := blind{}
	for _, o := range f.objects(roleDeadLetter) {
		ready := int64(o.Queue.Ready)
		if exists := f.exists(o.Name); rabbitmq.HoldsBack(f.Version) && !o.Queue.Details.Known && ready == 0 &&
			(!exists.Known || exists.Value) {
			hidden.add(o.Queue.Details.Why+" (RabbitMQ "+f.Version+" may hold messages, which AMQP does not count)",
				o.Name)
		}
		if told := o.Queue.Details.Value.Messages; told != nil {
			ready = max(ready, *told)
		}
		if n := o.Queue.Consumers; n > 0 {
			found = append(found, Finding{Severity: Note, Object: o.label(), Found: times(n, "consumer"),
				Means: "dead letters that it acknowledges leave the queue, so the commands of amqpretry dlq show " +
					"only the others. That is right for a service that handles dead letters"})
		}
		if ready > 0 {
			found = append(found, Finding{Severity: Warning, Object: o.label(),
				Found: times(ready, "message"),
				Means: "they failed for good, and need a decision: replay, move or purge",
				Fix:   f.amqpretry("dlq stat", o.Topic.Plan.Queue)})
		}
	}
	return append(found, f.cannotSee(hidden, "whether there are dead letters")...)
}
