package doctor

import (
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/mainqueue"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// lookStrategy looks for main queues that are not as the strategies of their policies need them.
func lookStrategy(f Facts) []Finding {
	var found []Finding
	for _, t := range f.Topics {
		if t.Plan.Strategy == config.StrategyNative && f.Version != "" && !rabbitmq.DelaysRetries(f.Version) {
			found = append(found, Finding{Severity: Problem, Object: object{Name: t.Plan.Queue, Role: roleMain}.label(),
				Found: "its strategy native needs RabbitMQ 4.3 or later, found " + f.Version,
				Means: "the broker accepts the arguments and ignores them: failed messages return at once, without " +
					"a delay",
				Fix: "# upgrade the broker, or set another strategy in the policy of this topic"})
		}
	}
	return append(found, f.withPolicies("what strategies need of main queues", f.asStrategyNeeds, roleMain)...)
}

func (f Facts) asStrategyNeeds(o object, q httpapi.Queue) []Finding {
	var found []Finding
	if declared := slices.DeleteFunc(differences(o, q), mainqueue.Difference.FromPolicy); len(declared) > 0 {
		found = append(found, f.lacks(o, q, declared))
	}
	for _, w := range weaknesses(o, q, f.Version) {
		if w.ofStrategy {
			found = append(found, Finding{Severity: w.severity, Means: w.means, Fix: f.mainPolicyFix(o, q),
				Found: fmt.Sprintf("%s: %v, from the %s", w.key, q.Effective[w.key], f.sourceOf(q, w.key))})
		}
	}
	if own := amqp.Table(q.Arguments); o.Topic.Plan.MainArguments == nil && delaysRetries(own) {
		severity, means := delaysReturns(q)
		found = append(found, Finding{Severity: severity, Means: means,
			Found: fmt.Sprintf("x-delayed-retry-type: %v, and the strategy of its policy is not native",
				own["x-delayed-retry-type"]),
			Fix: "# RabbitMQ cannot change arguments. To recreate the queue without it:\n" + f.recreateMain(o)})
	}
	return found
}

// differences of a main queue from what its strategy needs.
func differences(o object, q httpapi.Queue) []mainqueue.Difference {
	return mainqueue.Differences(o.Topic.Plan, protection(o), q)
}

func protection(o object) config.Protection { return o.Topic.Policy.WithDefaults().Protect }

// lacks is the finding about a main queue that was not declared with what its strategy needs, and
// has it from no policy.
func (f Facts) lacks(o object, q httpapi.Queue, declared []mainqueue.Difference) Finding {
	texts := make([]string, len(declared))
	for i, d := range declared {
		texts[i] = d.String()
	}
	plan := o.Topic.Plan
	finding := Finding{Severity: Problem, Found: fmt.Sprintf("not as its strategy %s needs it: %s", plan.Strategy,
		strings.Join(texts, "; "))}
	const refused = "a service that declares the queue fails to subscribe"
	_, possible := mainqueue.Policy(plan, f.VHost, q)
	switch {
	case protection(o) == config.ProtectionPolicy && possible:
		finding.Means, finding.Fix = withoutArguments(plan.Strategy, q), f.mainPolicyFix(o, q)
	case possible && len(mainqueue.Differences(plan, config.ProtectionPolicy, q)) == 0:
		finding.Means = "a policy of the broker gives the queue what it needs, but " + refused
		finding.Fix = "# set protect: policy in the policy of this topic"
	case possible:
		finding.Means = refused + ". Else " + withoutArguments(plan.Strategy, q)
		finding.Fix = "# RabbitMQ cannot change arguments. Either set protect: policy in the policy of this topic, " +
			"and run doctor again:\n# it prints a policy of the broker. Or recreate the queue:\n" + f.recreateMain(o)
	default:
		finding.Means = refused + ". Else " + withoutArguments(plan.Strategy, q)
		finding.Fix = "# RabbitMQ cannot change arguments. To recreate the queue:\n" + f.recreateMain(o)
	}
	return finding
}

// withoutArguments says what it means for a strategy that its main queue is not as it needs it.
func withoutArguments(strategy config.Strategy, q httpapi.Queue) string {
	arguments := effective(q)
	switch _, deadLetters := arguments["x-dead-letter-exchange"]; {
	case hangs(q):
		return hanging
	case strategy == config.StrategyCycle && !deadLetters:
		return "the broker deletes rejected messages: each failure loses a message"
	case strategy == config.StrategyCycle:
		return "rejected messages can be lost, or do not return to this queue"
	case q.Type == amqp.QueueTypeClassic:
		return "the queue counts no returns, so a message that fails returns for ever"
	case strategy == config.StrategyNative && !delaysRetries(arguments):
		return "failed messages return at once, without a delay"
	case !deadLetters:
		return "the broker deletes a message that reaches the delivery limit"
	default:
		return "a message that reaches the delivery limit can be lost, or failed messages do not wait as the " +
			"policy says"
	}
}

// hanging is what comes of a delayed retry in a queue that makes room.
const hanging = "when more messages wait for their retry than the queue's length limit, the queue hangs: it " +
	"confirms and delivers nothing until it is deleted, even after a restart"

// hangs tells whether a queue has a delayed retry, and a length limit at which it drops its oldest
// messages.
func hangs(q httpapi.Queue) bool {
	arguments := effective(q)
	_, length := arguments["x-max-length"]
	_, bytes := arguments["x-max-length-bytes"]
	return delaysRetries(arguments) && (length || bytes) && dropsHead(arguments)
}

// delaysReturns says what a delayed retry means that the policy of a topic does not ask for.
func delaysReturns(q httpapi.Queue) (Severity, string) {
	if hangs(q) {
		return Problem, hanging
	}
	return Warning, "messages of a consumer that dies or closes its channel wait before they are delivered again"
}

// strategyWeaknesses judges what policies of the broker say against the strategy of a main queue.
func strategyWeaknesses(o object, q httpapi.Queue) []weakness {
	var all []weakness
	for _, d := range differences(o, q) {
		if d.FromPolicy() {
			key := strings.TrimPrefix(d.Argument, "x-")
			all = append(all, weakness{key: key, severity: Problem, ofStrategy: true,
				means: againstStrategy(o.Topic.Plan.Strategy, key, q)})
		}
	}
	const delays = "delayed-retry-type"
	if _, set := q.Effective[delays]; set && o.Topic.Plan.MainArguments == nil && delaysRetries(effective(q)) {
		severity, means := delaysReturns(q)
		all = append(all, weakness{key: delays, severity: severity, means: means, ofStrategy: true})
	}
	return all
}

// againstStrategy says what a key of a policy does to a main queue with a strategy.
func againstStrategy(strategy config.Strategy, key string, q httpapi.Queue) string {
	cycle := strategy == config.StrategyCycle
	switch {
	case key == "expires":
		return "the broker deletes the queue after that time without a consumer, with all its messages"
	case key == "message-ttl":
		return "a message that expires here after it was rejected is taken for rejected, and lost in the retry queue"
	case key == "delivery-limit" && cycle:
		return "a message that reaches the limit after it was rejected is taken for rejected, and lost in the " +
			"retry queue"
	case key == "delivery-limit":
		return "the lower value of policy and argument applies: a message that returns more often does not get all " +
			"of its attempts"
	case strings.HasPrefix(key, "delayed-retry") && hangs(q), key == "overflow" && hangs(q):
		return hanging
	case strings.HasPrefix(key, "delayed-retry"):
		return "failed messages do not wait as the policy of the topic says"
	case cycle && (key == "overflow" || key == "dead-letter-strategy"):
		return "the queue dead-letters at most once instead of at least once: rejected messages can be lost on " +
			"their way to the retry queue"
	case cycle:
		return "rejected messages do not return to this queue, or are lost"
	default:
		return "messages that reach the delivery limit can be lost"
	}
}

// givesByPolicy tells whether a policy of the broker is to give a main queue what its strategy
// needs, and does not.
func givesByPolicy(o object, q httpapi.Queue) bool {
	_, possible := mainqueue.Policy(o.Topic.Plan, "", q)
	return possible && protection(o) == config.ProtectionPolicy && len(differences(o, q)) > 0
}

// mainPolicyFix is the one command for the policies of a main queue: a second one would undo the
// first.
func (f Facts) mainPolicyFix(o object, q httpapi.Queue) string {
	if givesByPolicy(o, q) || f.lacksProtection(o, q) {
		return f.protectCommand(o)
	}
	return f.policyFix([]object{o}, false)
}

func (f Facts) recreateMain(o object) string {
	return mainqueue.Commands{AMQPRetry: f.amqpretry, Ctl: f.ctl}.Recreate(o.Name)
}

// rejected is the exchange to which the main queue of a plan dead-letters under the strategy cycle;
// empty under any other.
func rejected(plan topology.Plan) string {
	if plan.Strategy != config.StrategyCycle {
		return ""
	}
	exchange, _ := plan.MainArguments["x-dead-letter-exchange"].(string)
	return exchange
}

// rejectedStay is what comes of a missing rejected exchange, or of a missing binding of it.
const rejectedStay = "messages that the exchange cannot route stay in the main queue, invisible to AMQP. After 32 " +
	"of them the queue dead-letters nothing else, so no failed message returns. They go on within 3 minutes after " +
	"a service declares what is missing"

// delaysRetries tells whether a main queue with these arguments has the delayed retry of RabbitMQ
// 4.3.
//
// Upstream: no delayed retry, and its arguments are ignored without an error.
func delaysRetries(arguments amqp.Table) bool {
	kind, _ := arguments["x-delayed-retry-type"].(string)
	least, _ := header.Integer(arguments["x-delayed-retry-min"])
	return kind != "" && kind != "disabled" && least > 0
}
