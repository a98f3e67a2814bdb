package doctor

import (
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// lookStrategy looks for main queues that are not as the strategies of their policies need them.
func lookStrategy(f Facts) []Finding {
	var found []Finding
	for _, t := range f.Topics {
		if t.Plan.Strategy == config.StrategyNative && f.Version != "" && !rabbitmq.DelaysRetries(f.Version) {
			found = append(found, f.says("strategy.version").about(t.Objects()[0]))
		}
	}
	return append(found, f.withPolicies("what strategies need of main queues", f.asStrategyNeeds, inspect.RoleMain)...)
}

func (f Facts) asStrategyNeeds(o inspect.Object, q httpapi.Queue) []Finding {
	var found []Finding
	if declared := slices.DeleteFunc(o.Topic.Differences(q), inspect.Difference.FromPolicy); len(declared) > 0 {
		found = append(found, f.lacks(o, q, declared))
	}
	for _, w := range f.weaknesses(o, q) {
		if w.ofStrategy() {
			found = append(found, f.told(w, q, f.mainPolicyFix(o, q)))
		}
	}
	if own := amqp.Table(q.Arguments); o.Topic.Plan.MainArguments == nil && delaysRetries(own) {
		finding := f.says("strategy.delayed-twice", "value", own["x-delayed-retry-type"], "fix", f.Recreate(o.Name))
		delays := rules[delaysReturns(q)]
		finding.Severity, finding.Means = delays.Severity, delays.Means
		found = append(found, finding)
	}
	return found
}

// lacks is the finding about a main queue that was not declared with what its strategy needs, and
// has it from no policy.
func (f Facts) lacks(o inspect.Object, q httpapi.Queue, declared []inspect.Difference) Finding {
	texts := make([]string, len(declared))
	for i, d := range declared {
		texts[i] = d.String()
	}
	plan, rule, fix := o.Topic.Plan, "strategy.arguments", f.Recreate(o.Name)
	_, possible := inspect.Policy(plan, f.VHost, q)
	switch {
	case possible && o.Topic.Protect() == config.ProtectionPolicy:
		rule, fix = "strategy.policy-is-missing", f.mainPolicyFix(o, q)
	case possible && len(inspect.Differences(plan, config.ProtectionPolicy, q)) == 0:
		rule = "strategy.protect-by-policy"
	case possible:
		rule = "strategy.arguments-or-policy"
	}
	return f.says(rule, "strategy", plan.Strategy, "differences", strings.Join(texts, "; "),
		"without", f.says("strategy.without."+withoutArguments(plan.Strategy, q)).Means, "fix", fix)
}

// withoutArguments is what it means for a strategy that its main queue is not as it needs it.
func withoutArguments(strategy config.Strategy, q httpapi.Queue) string {
	arguments := inspect.Effective(q)
	switch _, deadLetters := arguments["x-dead-letter-exchange"]; {
	case hangs(q):
		return "hangs"
	case strategy == config.StrategyCycle && !deadLetters:
		return "cycle-exchange"
	case strategy == config.StrategyCycle:
		return "cycle"
	case q.Type == amqp.QueueTypeClassic:
		return "classic"
	case strategy == config.StrategyNative && !delaysRetries(arguments):
		return "delay"
	case !deadLetters:
		return "exchange"
	default:
		return "other"
	}
}

// hangs tells whether a queue has a delayed retry, and a length limit at which it drops its oldest
// messages.
func hangs(q httpapi.Queue) bool {
	arguments := inspect.Effective(q)
	_, length := arguments["x-max-length"]
	_, bytes := arguments["x-max-length-bytes"]
	return delaysRetries(arguments) && (length || bytes) && dropsHead(arguments)
}

// delaysReturns is the rule about a delayed retry that the policy of a topic does not ask for.
func delaysReturns(q httpapi.Queue) string {
	if hangs(q) {
		return "strategy.key.hangs"
	}
	return "strategy.key.delays"
}

// strategyWeaknesses judges what policies of the broker say against the strategy of a main queue.
func strategyWeaknesses(o inspect.Object, q httpapi.Queue) []weakness {
	var all []weakness
	for _, d := range o.Topic.Differences(q) {
		if d.FromPolicy() {
			key := strings.TrimPrefix(d.Argument, "x-")
			all = append(all, weakness{key: key, rule: "strategy.key." + againstStrategy(o.Topic.Plan.Strategy, key,
				q)})
		}
	}
	const delays = "delayed-retry-type"
	if _, set := q.Effective[delays]; set && o.Topic.Plan.MainArguments == nil && delaysRetries(inspect.Effective(q)) {
		all = append(all, weakness{key: delays, rule: delaysReturns(q)})
	}
	return all
}

// againstStrategy is what a key of a policy does to a main queue with a strategy.
func againstStrategy(strategy config.Strategy, key string, q httpapi.Queue) string {
	cycle, delayed := strategy == config.StrategyCycle, strings.HasPrefix(key, "delayed-retry")
	switch {
	case key == "expires", key == "message-ttl", key == "delivery-limit" && !cycle:
		return key
	case key == "delivery-limit":
		return "delivery-limit-cycle"
	case (delayed || key == "overflow") && hangs(q):
		return "hangs"
	case delayed:
		return "delayed-retry"
	case cycle && (key == "overflow" || key == "dead-letter-strategy"):
		return "once-cycle"
	case cycle:
		return "cycle"
	default:
		return "other"
	}
}

// mainPolicyFix is the one command for the policies of a main queue: a second one would undo the
// first. If a policy of the broker is to give the queue what its strategy needs, it protects it.
func (f Facts) mainPolicyFix(o inspect.Object, q httpapi.Queue) string {
	_, possible := inspect.Policy(o.Topic.Plan, "", q)
	gives := possible && o.Topic.Protect() == config.ProtectionPolicy && len(o.Topic.Differences(q)) > 0
	if gives || f.lacksProtection(o, q) {
		return f.protectCommand(o)
	}
	return f.policyFix([]inspect.Object{o}, false)
}

// delaysRetries tells whether a main queue with these arguments has the delayed retry of RabbitMQ
// 4.3.
//
// Upstream: no delayed retry, and its arguments are ignored without an error.
func delaysRetries(arguments amqp.Table) bool {
	kind, _ := arguments["x-delayed-retry-type"].(string)
	least, _ := header.Integer(arguments["x-delayed-retry-min"])
	return kind != "" && kind != "disabled" && least > 0
}
