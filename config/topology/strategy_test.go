package topology_test

import (
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

func strategyPlan(t *testing.T, policy config.Policy, names topology.Names) topology.Plan {
	t.Helper()
	plan, err := topology.New("orders", policy, names)
	require.NoError(t, err)
	return plan
}

func cycle() config.Policy {
	return config.Policy{Strategy: config.StrategyCycle, Delays: []time.Duration{30 * time.Second}, Retries: 3}
}

func TestCyclePlan(t *testing.T) {
	const rejected = "orders.rejected.30s"
	plan := strategyPlan(t, cycle(), topology.Names{})
	assert.Equal(t, config.StrategyCycle, plan.Strategy)
	assert.Contains(t, plan.Exchanges, topology.Exchange{Name: rejected, Type: "headers", Durable: true})
	routes := map[string]string{}
	for _, b := range plan.Bindings {
		if b.Exchange == rejected {
			assert.Equal(t, "all-with-x", b.Arguments["x-match"])
			routes[b.Arguments["x-first-death-reason"].(string)] = b.Queue
		}
	}
	assert.Equal(t, map[string]string{"rejected": "orders.retry.30s", "expired": "orders.dlq",
		"maxlen":         "orders.dlq",
		"delivery_limit": "orders.dlq"}, routes, "a reason without a binding would stop the dead-lettering")
	assert.Equal(t, amqp091.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": rejected,
		"x-dead-letter-routing-key": "orders", "x-dead-letter-strategy": "at-least-once",
		"x-overflow": "reject-publish", "x-delivery-limit": int64(2147483647)}, plan.MainArguments)
	_, ok := plan.MainPolicy("/")
	assert.False(t, ok)

	// copies take the same way as without the strategy
	copied := strategyPlan(t, config.Policy{Delays: []time.Duration{30 * time.Second}}, topology.Names{})
	exchange, key := plan.End()
	wantedExchange, wantedKey := copied.End()
	assert.Equal(t, []string{wantedExchange, wantedKey}, []string{exchange, key})
	assert.Equal(t, copied.Queues, plan.Queues)
	assert.Nil(t, copied.MainArguments)
}

func TestRedeliveryAndNativePlans(t *testing.T) {
	redelivery := strategyPlan(t, config.Policy{Strategy: config.StrategyRedelivery}, topology.Names{})
	assert.Equal(t, topology.ProtectArguments("orders.dlq"), redelivery.MainArguments)
	policy, ok := redelivery.MainPolicy("/")
	assert.True(t, ok)
	assert.Equal(t, topology.ProtectPolicy("/", "orders", "orders.dlq"), policy)

	native := strategyPlan(t, config.Policy{Strategy: config.StrategyNative, Retries: 3, Backoff: config.Backoff{
		Kind: config.BackoffLinear, Initial: 10 * time.Second}}, topology.Names{})
	wanted := topology.ProtectArguments("orders.dlq")
	wanted["x-delayed-retry-type"], wanted["x-delayed-retry-min"], wanted["x-delayed-retry-max"] = "failed",
		int64(10000), int64(30000)
	assert.Equal(t, wanted, native.MainArguments)
	policy, ok = native.MainPolicy("/")
	assert.True(t, ok)
	assert.Contains(t, policy.Definition,
		`"delayed-retry-max":30000,"delayed-retry-min":10000,"delayed-retry-type":"failed"`)
}

func TestMainConflicts(t *testing.T) {
	plan := strategyPlan(t, cycle(), topology.Names{})
	assert.Equal(t, []string{"x-dead-letter-exchange", "x-message-ttl", "x-overflow", "x-queue-type"},
		plan.MainConflicts(amqp091.Table{"x-queue-type": "classic", "x-message-ttl": 5, "x-overflow": "drop-head",
			"x-max-length": 5, "x-dead-letter-exchange": "dlx", "x-delivery-limit": int32(2147483647)}))
	assert.Equal(t, amqp091.Table{"x-max-length": 5, "x-queue-type": "quorum",
		"x-dead-letter-exchange": "orders.rejected.30s", "x-dead-letter-routing-key": "orders",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
		"x-delivery-limit": int64(2147483647)},
		plan.WithMainArguments(amqp091.Table{"x-max-length": 5}))

	redelivery := strategyPlan(t, config.Policy{Strategy: config.StrategyRedelivery}, topology.Names{})
	assert.Equal(t, []string{"x-delayed-retry-type"}, redelivery.MainConflicts(amqp091.Table{"x-message-ttl": 5,
		"x-delayed-retry-type": "all"}))
	copied := strategyPlan(t, config.Policy{}, topology.Names{})
	assert.Empty(t, copied.MainConflicts(amqp091.Table{"x-queue-type": "classic"}))
}

func TestRejectedExchangeIsNamedByItsBindings(t *testing.T) {
	names := func(n topology.Names) string {
		return strategyPlan(t, cycle(), n).MainArguments["x-dead-letter-exchange"].(string)
	}
	other := names(topology.Names{DeadLetterQueue: func(string) string { return "graveyard" }})
	assert.Regexp(t, `^orders\.rejected\.30s\.[0-9a-f]{8}$`, other)
	assert.NotEqual(t, other, names(topology.Names{DeadLetterQueue: func(string) string { return "cemetery" }}))
	classic := cycle()
	classic.ClassicQueues = true
	assert.Equal(t, "orders.rejected.30s.classic", strategyPlan(t, classic,
		topology.Names{}).MainArguments["x-dead-letter-exchange"])

	_, err := topology.New("orders", cycle(),
		topology.Names{Rejected: func(topology.RetryQueueParams) string { return "x" }})
	var name *topology.NameError
	require.ErrorAs(t, err, &name)
	assert.ErrorContains(t, err, `rejected exchange "x": does not depend on the delay`)
	_, err = topology.New("orders", cycle(), topology.Names{Rejected: func(p topology.RetryQueueParams) string {
		if p.Delay == "30s" {
			return "orders.retry"
		}
		return p.Delay
	}})
	assert.ErrorContains(t, err, `rejected exchange "orders.retry": has the same name as another exchange`)
}
