package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// weakness is a key of a policy that takes something from a queue.
type weakness struct {
	key string
	// rule about it, without its fix; the checks of policies and of strategies have different ones.
	rule  string
	words []any
}

// ofStrategy tells that the check of strategies reports it.
func (w weakness) ofStrategy() bool { return strings.HasPrefix(w.rule, "strategy.") }

// isHarmful tells what is not as its owner may want it.
func (w weakness) isHarmful() bool { return rules[w.rule].Severity != Note }

// told is the finding about a weakness of a queue.
func (f Facts) told(w weakness, q httpapi.Queue, fix string) Finding {
	return f.says(w.rule, append(w.words, "key", w.key, "value", q.Effective[w.key], "source", f.sourceOf(q, w.key),
		"fix", fix)...)
}

func lookPolicies(f Facts) []Finding {
	groups := map[string][]inspect.Object{} // by queue; by ladder, as the fix is one policy for all of its queues
	of := func(o inspect.Object) string { return cmp.Or(o.Ladder, o.Name) }
	for _, o := range f.queues() {
		groups[of(o)] = append(groups[of(o)], o)
	}
	fixes := map[string]string{}
	return f.withPolicies("policies of the broker", func(o inspect.Object, q httpapi.Queue) []Finding {
		var found []Finding
		for _, w := range f.weaknesses(o, q) {
			if w.ofStrategy() {
				continue
			}
			if _, known := fixes[of(o)]; !known && w.isHarmful() {
				if o.Role == inspect.RoleMain {
					fixes[of(o)] = f.mainPolicyFix(o, q)
				} else {
					fixes[of(o)] = f.policyFix(groups[of(o)], false)
				}
			}
			found = append(found, f.told(w, q, fixes[of(o)]))
		}
		return found
	})
}

// weaknesses judges what the policies say of a queue.
func (f Facts) weaknesses(o inspect.Object, q httpapi.Queue) []weakness {
	var all []weakness
	if o.Role == inspect.RoleMain {
		all = strategyWeaknesses(o, q)
	}
	add := func(key, rule string, words ...any) {
		_, set := q.Effective[key]
		if set && !slices.ContainsFunc(all, func(w weakness) bool { return w.key == key }) {
			all = append(all, weakness{key, rule, words})
		}
	}
	role, in := slug(o.Role), inspect.Effective(q)
	limit := func(key string) int64 { n, _ := q.Effective[key].(int64); return n }
	drops := dropsHead(in)
	waits := o.Role == inspect.RoleRetry || o.Role == inspect.RoleDelay
	keeps := o.Role == inspect.RoleDeadLetter || o.Role == inspect.RoleUnroutable
	quorum := q.Type == amqp.QueueTypeQuorum
	main := o.Role == inspect.RoleMain

	add("expires", "policies.expires."+role)
	if ttl := limit("message-ttl"); main || keeps || waits && ttl < o.Queue.Delay.Milliseconds() {
		delay := ""
		if waits {
			delay = config.FormatDelay(o.Queue.Delay)
		}
		add("message-ttl", "policies.message-ttl."+role, "ttl", ttl, "delay", delay)
	}
	if quorum && drops && (waits || main && in["x-dead-letter-strategy"] == "at-least-once") {
		add("overflow", "policies.overflow."+role)
	}
	if _, own := q.Arguments["x-dead-letter-routing-key"]; waits && !own {
		add("dead-letter-routing-key", "policies.dead-letter-routing-key."+rerouted(o))
	}
	if (waits || keeps) && lowersDeliveryLimit(q, f.Version) {
		rule, often := "retry", "policies.often"
		if keeps {
			rule = "dead-letter"
		}
		if rabbitmq.CountsFailuresOnly(f.Version) {
			often = "policies.often-failures"
		}
		add("delivery-limit", "policies.delivery-limit."+rule, "often", f.says(often).Means+" ")
	}
	for _, argument := range lengthLimits {
		if key := strings.TrimPrefix(argument, "x-"); limit(key) < noLimit {
			add(key, whenFull(o.Role, drops))
		}
	}
	return all
}

// lowersDeliveryLimit tells of a policy whose limit is below the queue's own. A negative one is
// none, from 4.0 on.
func lowersDeliveryLimit(q httpapi.Queue, version string) bool {
	own, _ := q.Arguments["x-delivery-limit"].(int64)
	limit, _ := q.Effective["delivery-limit"].(int64)
	return limit < own && (limit >= 0 || !rabbitmq.LimitsByDefault(version))
}

// rerouted is the rule about a policy that sets the routing key of what a queue hands on.
func rerouted(o inspect.Object) string {
	switch ladder, err := topology.ParseLadderName(o.Ladder); {
	case o.Ladder == "" || err != nil:
		return "retry"
	case o.Queue.Arguments["x-dead-letter-exchange"] == ladder.Delivery():
		return "level-0"
	default:
		return "delay"
	}
}

// lengthLimits are the arguments that limit the length of a queue.
var lengthLimits = []string{"x-max-length", "x-max-length-bytes"}

// whenFull is the rule about a length limit of a queue. All services share the queues of a ladder:
// one queue that rejects messages stops the queues before it.
func whenFull(of inspect.Role, dropsHead bool) string {
	if dropsHead {
		return "policies.full." + slug(of) + ".drops"
	}
	return "policies.full." + slug(of) + ".rejects"
}

// limited says what the limit means that a queue has among its arguments; empty if it has none.
func (f Facts) limited(o inspect.Object) string {
	details, conflict := o.Is.Details, o.Is.Conflict.Value
	has := conflict != nil && slices.Contains(lengthLimits, conflict.Argument)
	for _, argument := range lengthLimits {
		n, set := details.Value.Arguments[argument].(int64)
		has = has || set && n < noLimit
	}
	if !has {
		return ""
	}
	means := func(drops bool) string { return f.says(whenFull(o.Role, drops)).Means }
	if !details.Known {
		return f.says("arguments.limit-unknown", "rejects", means(false), "drops", means(true)).Means
	}
	return ". " + means(dropsHead(inspect.Effective(details.Value)))
}

// dropsHead tells whether a full queue with these arguments makes room.
func dropsHead(arguments amqp.Table) bool {
	return arguments[amqp.QueueOverflowArg] == nil || arguments[amqp.QueueOverflowArg] == "drop-head"
}

// sourceOf names the policies that say something of a queue.
func (f Facts) sourceOf(q httpapi.Queue, key string) string {
	var sources []string
	if p, known := named(f.OperatorPolicies.Value, q.OperatorPolicy); known && p.Definition[key] != nil {
		sources = append(sources, fmt.Sprintf("operator policy %q", p.Name))
	}
	if p, known := named(f.Policies.Value, q.Policy); known && p.Definition[key] != nil {
		sources = append(sources, fmt.Sprintf("policy %q", p.Name))
	}
	if len(sources) == 0 {
		return "policies of the broker"
	}
	return strings.Join(sources, " and the ")
}
