package inspect

import (
	"maps"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

func planOf(t *testing.T, strategy config.Strategy) topology.Plan {
	t.Helper()
	plan, err := topology.New("orders", config.Policy{Strategy: strategy, Delays: []time.Duration{10 * time.Second},
		Retries: 3}, topology.Names{})
	require.NoError(t, err)
	return plan
}

// queue is one with the arguments that a plan needs, and others.
func queue(plan topology.Plan, change func(arguments, effective httpapi.Arguments)) httpapi.Queue {
	q := httpapi.Queue{Name: "orders", Type: "quorum", Arguments: httpapi.Arguments{},
		Effective: httpapi.Arguments{}}
	maps.Copy(q.Arguments, plan.MainArguments)
	if change != nil {
		change(q.Arguments, q.Effective)
	}
	return q
}

func TestDifferences(t *testing.T) {
	const byArguments, byPolicy = config.ProtectionArguments, config.ProtectionPolicy
	const cycle, redelivery, native = config.StrategyCycle, config.StrategyRedelivery, config.StrategyNative
	asPolicy := func(arguments, effective httpapi.Arguments) {
		for argument, value := range arguments {
			if argument != amqp.QueueTypeArg {
				effective[strings.TrimPrefix(argument, "x-")] = value
				delete(arguments, argument)
			}
		}
	}
	for name, test := range map[string]struct {
		strategy config.Strategy
		protect  config.Protection
		change   func(arguments, effective httpapi.Arguments)
		wanted   []string
	}{
		"as declared": {cycle, byArguments, nil, nil},
		"by a policy": {native, byPolicy, asPolicy, nil},
		"its own argument": {redelivery, byArguments, func(a, _ httpapi.Arguments) {
			a["x-max-length"] = int64(5)
		}, nil},
		"a policy instead of arguments": {redelivery, byArguments, asPolicy, []string{
			`x-dead-letter-exchange: wanted "", found none`, `x-dead-letter-routing-key: wanted orders.dlq, found none`,
			`x-dead-letter-strategy: wanted at-least-once, found none`, `x-delivery-limit: wanted 1000, found none`,
			`x-overflow: wanted reject-publish, found none`}},
		"no policy": {redelivery, byPolicy, func(a, _ httpapi.Arguments) { delete(a, "x-dead-letter-exchange") },
			[]string{`x-dead-letter-exchange: wanted "", found none`}},
		"drop-head by a policy": {cycle, byArguments, func(_, e httpapi.Arguments) { e["overflow"] = "drop-head" },
			[]string{"x-overflow: wanted reject-publish, found drop-head, from a policy of the broker"}},
		"TTL by a policy": {cycle, byArguments, func(_, e httpapi.Arguments) { e["message-ttl"] = int64(5) },
			[]string{"x-message-ttl: wanted none, found 5, from a policy of the broker"}},
		"TTL without a cycle": {redelivery, byArguments, func(_, e httpapi.Arguments) {
			e["message-ttl"] = int64(5)
		}, nil},
		"expires": {cycle, byArguments, func(a, _ httpapi.Arguments) { a["x-expires"] = int64(5) },
			[]string{"x-expires: wanted none, found 5"}},
		"a lower limit": {cycle, byArguments, func(_, e httpapi.Arguments) { e["delivery-limit"] = int64(20) },
			[]string{"x-delivery-limit: wanted 2147483647, found 20, from a policy of the broker"}},
		"a higher limit": {redelivery, byPolicy, func(a, _ httpapi.Arguments) {
			a["x-delivery-limit"] = int64(2000)
		}, nil},
		"the argument wins": {cycle, byArguments, func(_, e httpapi.Arguments) { e["dead-letter-exchange"] = "x" },
			nil},
		"another exchange": {cycle, byArguments, func(a, _ httpapi.Arguments) { a["x-dead-letter-exchange"] = "x" },
			[]string{"x-dead-letter-exchange: wanted orders.rejected.10s, found x"}},
		"retries delayed twice": {redelivery, byArguments, func(_, e httpapi.Arguments) {
			e["delayed-retry-type"] = "all"
		}, []string{"x-delayed-retry-type: wanted none, found all, from a policy of the broker"}},
		"another type of delays": {native, byArguments, func(_, e httpapi.Arguments) {
			e["delayed-retry-type"] = "disabled"
		}, []string{"x-delayed-retry-type: wanted failed, found disabled, from a policy of the broker"}},
	} {
		plan := planOf(t, test.strategy)
		var found []string
		for _, d := range Differences(plan, test.protect, queue(plan, test.change)) {
			found = append(found, d.String())
		}
		assert.Equal(t, test.wanted, found, name)
	}

	plan := planOf(t, redelivery)
	classic := queue(plan, nil)
	classic.Type = "classic"
	delete(classic.Arguments, "x-queue-type")
	found := Differences(plan, byArguments, classic)
	require.Len(t, found, 1)
	assert.Equal(t, "x-queue-type: wanted quorum, found classic", found[0].String())
	assert.Empty(t, Differences(planOf(t, config.StrategyQueues), byArguments, httpapi.Queue{}))
}

func TestPolicyOrNot(t *testing.T) {
	plan := planOf(t, config.StrategyRedelivery)
	bare := httpapi.Queue{Type: "quorum", Arguments: httpapi.Arguments{"x-queue-type": "quorum"}}
	policy, ok := Policy(plan, "/", bare)
	assert.True(t, ok)
	wanted, _ := plan.MainPolicy("/")
	assert.Equal(t, wanted, policy)

	bare.Arguments["x-dead-letter-exchange"] = "x"
	_, ok = Policy(plan, "/", bare)
	assert.False(t, ok, "the argument would win")
	_, ok = Policy(plan, "/", httpapi.Queue{Type: "classic"})
	assert.False(t, ok, "it does not count")
	_, ok = Policy(planOf(t, config.StrategyCycle), "/", httpapi.Queue{Type: "quorum"})
	assert.False(t, ok, "nobody could see that it is not there")
}
