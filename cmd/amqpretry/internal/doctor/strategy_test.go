package doctor

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/retire"
)

func strategyPolicy(strategy config.Strategy) config.Policy {
	return config.Policy{Strategy: strategy, Delays: []time.Duration{10 * time.Second}, Retries: 3}
}

// main changes the arguments of the main queue, and what policies say of it.
func (f Facts) main(how func(arguments, policy httpapi.Arguments)) Facts {
	f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) {
		definition := httpapi.Arguments{}
		how(q.Arguments, definition)
		if q.Arguments[amqp.QueueTypeArg] != nil {
			q.Type, _ = q.Arguments[amqp.QueueTypeArg].(string)
		}
		if len(definition) > 0 {
			q.Policy, q.Effective = ptr("p"), definition
			f.Policies = inspect.Known([]httpapi.Policy{{VHost: "/", Name: "p", Priority: 3, Definition: definition}})
		}
	})
	return f
}

// byPolicy moves all arguments but the type to a policy of the broker.
func byPolicy(arguments, policy httpapi.Arguments) {
	for argument, value := range maps.Clone(arguments) {
		if argument != amqp.QueueTypeArg {
			policy[strings.TrimPrefix(argument, "x-")] = value
			delete(arguments, argument)
		}
	}
}

func TestStrategyCheck(t *testing.T) {
	const cycle, redelivery, native = config.StrategyCycle, config.StrategyRedelivery, config.StrategyNative
	const recreate = "amqpretry dlq purge --dead-letter-queue 'orders' --all --yes --undo main-queue-orders.jsonl " +
		"'orders' &&"
	for name, test := range map[string]struct {
		strategy config.Strategy
		protect  config.Protection
		how      func(arguments, policy httpapi.Arguments)
		severity Severity
		found    string
		means    string
		fix      string
	}{
		"rejected messages are dropped": {cycle, "", bare, Problem,
			"not as its strategy cycle needs it: x-dead-letter-exchange: wanted orders.rejected.10s, " +
				"found none",
			"Else the broker deletes rejected messages", recreate},
		"of another delay": {cycle, "", func(a, _ httpapi.Arguments) {
			a["x-dead-letter-exchange"] = "orders.rejected.30s"
		}, Problem, "x-dead-letter-exchange: wanted orders.rejected.10s, found orders.rejected.30s", "do not return",
			recreate},
		"drop-head by a policy": {cycle, "", func(_, p httpapi.Arguments) {
			p["overflow"], p["max-priority"] = "drop-head", int64(3)
		}, Problem, `overflow: drop-head, from the policy "p"`, "at most once",
			`--priority 4 --apply-to queues 'amqpretry.orders' '^orders$' '{"max-priority":3}'`},
		"TTL by a policy": {cycle, "", func(_, p httpapi.Arguments) { p["message-ttl"] = int64(5) }, Problem,
			`message-ttl: 5, from the policy "p"`, "taken for rejected, and lost", "set_policy"},
		"expires by a policy": {cycle, "", func(_, p httpapi.Arguments) { p["expires"] = int64(5) }, Problem,
			`expires: 5, from the policy "p"`, "deletes the queue", "set_policy"},
		"TTL by an argument": {cycle, "", func(a, _ httpapi.Arguments) { a["x-message-ttl"] = int64(5) }, Problem,
			"x-message-ttl: wanted none, found 5", "fails to subscribe", recreate},
		"a lower limit": {cycle, "", func(_, p httpapi.Arguments) { p["delivery-limit"] = int64(20) }, Problem,
			`delivery-limit: 20, from the policy "p"`, "lost in the retry queue", "set_policy"},
		"nothing by arguments": {redelivery, "", bare, Problem,
			`not as its strategy redelivery needs it: x-dead-letter-exchange: wanted "", found none`, "fails to " +
				"subscribe",
			"# RabbitMQ cannot change arguments. Either set protect: policy"},
		"a policy, and arguments are wanted": {redelivery, "", byPolicy, Problem, "found none",
			"a policy of the broker gives the queue what it needs", "# set protect: policy in the policy of this " +
				"topic"},
		"no policy": {native, config.ProtectionPolicy, bare, Problem, "x-delayed-retry-type: wanted failed, found none",
			"without a delay", `--priority 100 --apply-to queues 'amqpretry.orders' '^orders$' ` +
				`'{"dead-letter-exchange":"","dead-letter-routing-key":"orders.dlq","dead-letter-strategy":"at-least-once",` +
				`"delayed-retry-max":10000,"delayed-retry-min":10000,"delayed-retry-type":"failed","delivery-limit":1000,` +
				`"overflow":"reject-publish"}'`},
		"classic": {redelivery, "", func(a, _ httpapi.Arguments) { a["x-queue-type"] = "classic" }, Problem,
			"x-queue-type: wanted quorum, found classic", "counts no returns", recreate},
		"native hangs, by a policy": {native, "", func(_, p httpapi.Arguments) {
			p["overflow"], p["max-length"] = "drop-head", int64(100)
		}, Problem, `overflow: drop-head, from the policy "p"`, "the queue hangs", "set_policy"},
		"native hangs, by arguments": {native, config.ProtectionPolicy, func(a, _ httpapi.Arguments) {
			delete(a, "x-overflow")
			a["x-max-length"] = int64(100)
		}, Problem, "x-overflow: wanted reject-publish, found none", "the queue hangs", `"overflow":"reject-publish"`},
		"other delays": {native, "", func(_, p httpapi.Arguments) { p["delayed-retry-max"] = int64(5) }, Problem,
			`delayed-retry-max: 5, from the policy "p"`, "do not wait as the policy", "set_policy"},
		"a delay that nobody wants": {redelivery, "", func(_, p httpapi.Arguments) {
			p["delayed-retry-type"], p["delayed-retry-min"] = "all", int64(5)
		}, Problem, `delayed-retry-type: all, from the policy "p"`, "do not wait as the policy", "set_policy"},
		"a delay for copies": {config.StrategyQueues, "", func(_, p httpapi.Arguments) {
			p["delayed-retry-type"], p["delayed-retry-min"] = "all", int64(5)
		}, Warning, `delayed-retry-type: all, from the policy "p"`, "wait before they are delivered again",
			"set_policy"},
		"a delay for copies hangs": {config.StrategyQueues, "", func(a, p httpapi.Arguments) {
			p["delayed-retry-type"], p["delayed-retry-min"], p["max-length"] = "all", int64(5), int64(5)
			delete(a, "x-overflow")
		}, Problem, `delayed-retry-type: all, from the policy "p"`, "the queue hangs", "set_policy"},
		"a delay for copies, by arguments": {config.StrategyQueues, "", func(a, _ httpapi.Arguments) {
			a["x-delayed-retry-type"], a["x-delayed-retry-min"] = "all", int64(5)
		}, Warning, "x-delayed-retry-type: all, and the strategy of its policy is not native", "wait before", recreate},
	} {
		t.Run(name, func(t *testing.T) {
			policy := strategyPolicy(test.strategy)
			policy.Protect = test.protect
			f := healthyUnder(t, policy)
			f.Version = "4.3.6"
			f = f.main(test.how)
			all := diagnose(f)
			finding, found := find(all, "strategy", `main queue "orders"`, test.found)
			require.True(t, found, "%+v", all)
			assert.Equal(t, test.severity, finding.Severity)
			assert.Contains(t, finding.Means, test.means)
			assert.Contains(t, finding.Fix, test.fix)

			fixes := map[string]string{} // one command for the policies of a queue
			for _, other := range all {
				for _, set := range regexp.MustCompile(`rabbitmqctl set_policy .*`).FindAllString(other.Fix, -1) {
					fixes[set] = other.Check
				}
				if other.Check == "policies" || other.Check == "delivery-limit" || other.Check == "dead-letter-target" {
					assert.NotContains(t, []Severity{Problem}, other.Severity, "told twice: %+v", other)
				}
			}
			assert.LessOrEqual(t, len(fixes), 1, "%v", fixes)
		})
	}
}

// bare leaves only the type of a main queue.
func bare(arguments, _ httpapi.Arguments) {
	maps.DeleteFunc(arguments, func(argument string, _ any) bool { return argument != amqp.QueueTypeArg })
}

// The policy of the broker follows also where "topology apply" ends with 4, as the main queue lacks
// that policy.
func TestDeadLetterQueueBeforeThePolicyOfAStrategy(t *testing.T) {
	policy := strategyPolicy(config.StrategyRedelivery)
	policy.Protect = config.ProtectionPolicy
	f := healthyUnder(t, policy).main(bare)
	f.Queues["orders.dlq"] = inspect.Queue{Exists: inspect.Known(false)}
	finding, found := find(diagnose(f), "strategy", `main queue "orders"`, "found none")
	require.True(t, found)
	assert.Contains(t, finding.Fix, "'orders' || test $? = 4 &&\nrabbitmqctl set_policy")
}

// A policy that an operator weakens keeps what the strategy needs.
func TestOperatorPolicyAgainstAStrategy(t *testing.T) {
	policy := strategyPolicy(config.StrategyRedelivery)
	policy.Protect = config.ProtectionPolicy
	f := healthyUnder(t, policy).main(byPolicy)
	f.OperatorPolicies = inspect.Known([]httpapi.Policy{{VHost: "/", Name: "o", Definition: httpapi.Arguments{
		"delivery-limit": int64(5), "overflow": "drop-head", "consumer-timeout": int64(9)}}})
	f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) {
		q.OperatorPolicy = ptr("o")
		q.Effective = inspect.Together(q.Effective, f.OperatorPolicies.Value[0].Definition)
	})
	fixes := fixesOf(diagnose(f), "strategy", "policies")
	require.Len(t, fixes, 1, "%v", fixes)
	assert.Contains(t, fixes[0], `"delivery-limit":1000,"overflow":"reject-publish"}' &&`)
	assert.Regexp(t, `set_operator_policy .*'{"consumer-timeout":9}'$`, fixes[0])
}

// Without the rejected exchange or one of its bindings, the main queue keeps what is rejected.
func TestRejectedExchange(t *testing.T) {
	const exchange = "orders.rejected.10s"
	f := healthyUnder(t, strategyPolicy(config.StrategyCycle))
	f.Exchanges[exchange] = inspect.Exchange{Exists: inspect.Known(false)}
	finding, found := find(diagnose(f), "exists", `exchange "`+exchange+`"`, "no such exchange")
	require.True(t, found)
	assert.Contains(t, finding.Means, "After 32 of them the queue dead-letters nothing else")
	assert.Contains(t, finding.Fix, "amqpretry topology apply --policies 'retry.yaml' 'orders'")

	for i, reason := range []string{"rejected", "expired", "maxlen", "delivery_limit"} {
		f := healthyUnder(t, strategyPolicy(config.StrategyCycle))
		x := f.Exchanges[exchange]
		x.Bindings.Value = append(x.Bindings.Value[:i:i], x.Bindings.Value[i+1:]...)
		f.Exchanges[exchange] = x
		finding, found := find(diagnose(f), "bindings", `exchange "`+exchange+`"`, " for "+reason)
		require.True(t, found, reason)
		assert.Equal(t, Problem, finding.Severity)
		assert.Contains(t, finding.Means, "After 32 of them")
		assert.Contains(t, finding.Fix, "topology apply")
	}

	f = healthyUnder(t, strategyPolicy(config.StrategyCycle))
	f.Obsolete = inspect.Known(retire.Found{Exchanges: []retire.Exchange{{Name: "orders.rejected.1s",
		Queue: "orders"}}})
	finding, found = find(diagnose(f), "obsolete", `exchange "orders.rejected.1s"`, "nothing dead-letters to it")
	require.True(t, found)
	assert.Equal(t, Note, finding.Severity)
	assert.Contains(t, finding.Fix, "amqpretry topology prune")
}

// Whoever declares a main queue that dead-letters needs to write to its exchange.
func TestPermissionsOfStrategies(t *testing.T) {
	needs := func(policy config.Policy, exchange string) {
		wanted := inspect.Permission{Operation: inspect.Write, Kind: rabbitmq.KindExchange, Name: exchange}
		assert.True(t, slices.ContainsFunc(inspect.Needs(healthyUnder(t, policy).Topics), wanted.Same), exchange)
	}
	needs(strategyPolicy(config.StrategyCycle), "orders.rejected.10s")
	needs(strategyPolicy(config.StrategyRedelivery), "amq.default")
}

const strategyFile = `topics:
  cycle*: {strategy: cycle, delays: [1m], retries: 3}
  redelivery*: {strategy: redelivery, delays: [1m]}
  policy*: {strategy: redelivery, delays: [1m], protect: policy}
  native*: {strategy: native, delays: [1m], retries: 3}
  copies*: {delays: [1m]}
`

// On a broker: what is wrong with main queues is found, and what a command can fix is fixed by it.
func testStrategies(l *lab) {
	t := l.t
	l.write(strategyFile)
	type is struct {
		queue, check, object, found string
		make                        func(queue string, plan topology.Plan)
		fixes                       bool
	}
	declared := func(change amqp.Table) func(string, topology.Plan) {
		return func(queue string, plan topology.Plan) {
			arguments := plan.WithMainArguments(nil)
			for key, value := range change {
				if arguments[key] = value; value == nil {
					delete(arguments, key)
				}
			}
			l.topic(queue, arguments)
		}
	}
	policy := func(queue, definition string) func(string, topology.Plan) {
		return func(_ string, plan topology.Plan) {
			declared(nil)(queue, plan)
			l.policy("policies", queue, "^"+queue+"$", definition, 150)
		}
	}
	all := []is{
		{"cycle-healthy", "", "", "", declared(nil), false},
		{"redelivery-healthy", "", "", "", declared(nil), false},
		{"cycle-bare", "strategy", `"cycle-bare"`, "x-dead-letter-exchange: wanted cycle-bare.rejected.1m, found none",
			func(queue string, _ topology.Plan) { l.topic(queue, amqp.Table{"x-queue-type": "quorum"}) }, false},
		{"cycle-head", "strategy", `"cycle-head"`, "overflow: drop-head", policy("cycle-head",
			`{"overflow":"drop-head"}`), true},
		{"cycle-ttl", "strategy", `"cycle-ttl"`, "message-ttl: 3600000", policy("cycle-ttl", `{"message-ttl":3600000}`),
			true},
		{"cycle-limit", "strategy", `"cycle-limit"`, "delivery-limit: 30, from the operator policy", func(
			q string, p topology.Plan) {
			declared(nil)(q, p)
			l.policy("operator-policies", "thirty", "^cycle-limit$", `{"delivery-limit":30}`, 0)
		}, true},
		{"cycle-gone", "exists", `exchange "cycle-gone.rejected.1m"`, "no such exchange", func(
			q string, p topology.Plan) {
			declared(nil)(q, p)
			l.do(func(ch *amqp.Channel) error { return ch.ExchangeDelete("cycle-gone.rejected.1m", false, false) })
		}, true},
		{"cycle-unbound", "bindings", `exchange "cycle-unbound.rejected.1m"`, "for maxlen", func(
			q string, p topology.Plan) {
			declared(nil)(q, p)
			l.do(func(ch *amqp.Channel) error {
				return ch.QueueUnbind("cycle-unbound.dlq", "", "cycle-unbound.rejected.1m",
					amqp.Table{"x-match": "all-with-x", "x-first-death-reason": "maxlen"})
			})
		}, true},
		{"redelivery-classic", "strategy", `"redelivery-classic"`, "x-queue-type: wanted quorum, found classic",
			func(queue string, _ topology.Plan) { l.topic(queue, amqp.Table{"x-queue-type": "classic"}) }, false},
		{"policy-bare", "strategy", `"policy-bare"`, `x-dead-letter-exchange: wanted "", found none`,
			func(queue string, _ topology.Plan) { l.topic(queue, amqp.Table{"x-queue-type": "quorum"}) }, true},
		{"policy-healthy", "", "", "", func(queue string, plan topology.Plan) {
			l.topic(queue, amqp.Table{"x-queue-type": "quorum"})
			p, _ := plan.MainPolicy("/")
			l.policy("policies", p.Name, p.Pattern, p.Definition, 100)
		}, false},
	}
	if since(4, 3)(l.version) {
		all = append(all,
			is{"native-hangs", "strategy", `"native-hangs"`, "overflow: drop-head", policy("native-hangs",
				`{"overflow":"drop-head","max-length":100}`), true},
			is{"copies-late", "strategy", `"copies-late"`, "delayed-retry-type: all", func(
				queue string, _ topology.Plan) {
				l.topic(queue, topology.ProtectArguments(queue+".dlq"))
				l.policy("policies", queue, "^copies-late$",
					`{"delayed-retry-type":"all","delayed-retry-min":500}`, 0)
			}, true},
			is{"native-healthy", "", "", "", declared(nil), false})
	} else {
		all = append(all, is{"native-old", "strategy", `"native-old"`, "needs RabbitMQ 4.3 or later",
			declared(nil), false})
	}
	queues := []string{}
	for _, w := range all {
		w.make(w.queue, l.plan(w.queue))
		queues = append(queues, w.queue)
	}

	var v verdict
	l.await("all is found", func() bool {
		v = l.full(queues...)
		for _, w := range all {
			if _, found := find(v.findings, w.check, w.object, w.found); w.check != "" && !found {
				return false
			}
		}
		return len(unseenOf(v.findings)) == 0
	})
	assert.Equal(t, cli.ExitFound, v.code)
	for _, f := range v.findings {
		if strings.Contains(f.Object, "-healthy") {
			assert.Equal(t, Note, f.Severity, "%+v", f)
		}
	}
	for _, w := range all {
		if w.fixes {
			f, _ := find(v.findings, w.check, w.object, w.found)
			l.run(f.Fix)
		}
	}
	l.await("all is fixed", func() bool {
		v = l.full(queues...)
		for _, w := range all {
			if _, found := find(v.findings, w.check, w.object, ""); w.fixes && found {
				return false
			}
		}
		return true
	})
	assert.Contains(t, l.get("policies"), "policy-healthy")
}
