package retire_test

import (
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/retire"
)

func TestObsoleteKnowsWhatItNeeds(t *testing.T) {
	now := mustPlan(t, "orders", config.Policy{Delays: []time.Duration{time.Second}})
	old := mustPlan(t, "orders", config.Policy{Delays: []time.Duration{time.Second, 30 * time.Second}})
	assert.Equal(t, []retire.Queue{{
		Queue: topology.Queue{Name: "orders.retry.30s", Delay: 30 * time.Second, Arguments: amqp.Table{
			"x-queue-type":              "quorum",
			"x-message-ttl":             int64(30000),
			"x-dead-letter-exchange":    "",
			"x-dead-letter-routing-key": "orders",
			"x-dead-letter-strategy":    "at-least-once",
			"x-overflow":                "reject-publish",
			"x-queue-leader-locator":    "balanced",
			"x-delivery-limit":          int64(2147483647),
		}},
		RetryExchange: "orders.retry",
	}}, retire.Obsolete([]topology.Plan{now}, old))
}

func TestObsolete(t *testing.T) {
	seconds := func(n ...int) []time.Duration {
		delays := make([]time.Duration, len(n))
		for i := range n {
			delays[i] = time.Duration(n[i]) * time.Second
		}
		return delays
	}
	plan := func(queue string, policy config.Policy) topology.Plan { return mustPlan(t, queue, policy) }
	two, three := config.Policy{Delays: seconds(1, 5)}, config.Policy{Delays: seconds(1, 5, 30)}
	shared := func(delays ...int) config.Policy {
		return config.Policy{Delays: seconds(delays...), Strategy: config.StrategyShared}
	}
	for name, test := range map[string]struct {
		now, old []topology.Plan
		want     []string
	}{
		"nothing":         {nil, nil, nil},
		"no old plan":     {[]topology.Plan{plan("q", two)}, nil, nil},
		"the same plan":   {[]topology.Plan{plan("q", two)}, []topology.Plan{plan("q", two)}, nil},
		"more delays now": {[]topology.Plan{plan("q", three)}, []topology.Plan{plan("q", two)}, nil},
		"fewer delays now": {[]topology.Plan{plan("q", two)}, []topology.Plan{plan("q", three)},
			[]string{"q.retry.30s"}},
		"many old plans": {[]topology.Plan{plan("q", config.Policy{Delays: seconds(7)})},
			[]topology.Plan{plan("q", two), plan("q", three)}, []string{"q.retry.1s", "q.retry.5s", "q.retry.30s"}},
		"retries are off": {[]topology.Plan{plan("q", config.Policy{Mode: config.ModeOff})},
			[]topology.Plan{plan("q", two)}, []string{"q.retry.1s", "q.retry.5s"}},
		"only dead letters": {[]topology.Plan{plan("q", config.Policy{Mode: config.ModeDeadLetter})},
			[]topology.Plan{plan("q", two)}, []string{"q.retry.1s", "q.retry.5s"}},
		"another type": {[]topology.Plan{plan("q", config.Policy{Delays: seconds(1, 5),
			ClassicQueues: true})}, []topology.Plan{plan("q", two)},
			[]string{"q.retry.1s", "q.retry.5s"}},
		"another main queue": {[]topology.Plan{plan("p", two)}, []topology.Plan{plan("q", two)},
			[]string{"q.retry.1s", "q.retry.5s"}},
		"a main queue now": {[]topology.Plan{plan("q.retry.30s", two)}, []topology.Plan{plan("q", three)},
			[]string{"q.retry.1s", "q.retry.5s"}},
		"a main queue before": {nil,
			[]topology.Plan{plan("q", two), plan("q.retry.1s", config.Policy{Mode: config.ModeOff})},
			[]string{"q.retry.5s"}},
		"shared, one uses it": {[]topology.Plan{plan("q", shared(1)), plan("p", shared(5))},
			[]topology.Plan{plan("q", shared(1, 5, 30))}, []string{"retry.30s"}},
		"shared, now its own": {[]topology.Plan{plan("q", two)}, []topology.Plan{plan("q", shared(1, 5))},
			[]string{"retry.1s", "retry.5s"}},
		"its own, now shared": {[]topology.Plan{plan("q", shared(1, 5))}, []topology.Plan{plan("q", two)},
			[]string{"q.retry.1s", "q.retry.5s"}},
		"shared by two before": {nil, []topology.Plan{plan("q", shared(1)), plan("p", shared(1))},
			[]string{"retry.1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			var names []string
			for _, queue := range retire.Obsolete(test.now, test.old...) {
				names = append(names, queue.Name)
			}
			assert.Equal(t, test.want, names)
		})
	}
}

// Whatever the plans: what is listed is a retry queue of an old plan with its binding, and in no
// current plan; what is not listed of the old retry queues is in one.
func TestObsoleteIsTheDifference(t *testing.T) {
	plans := rapid.Custom(func(t *rapid.T) topology.Plan {
		policy := config.Policy{
			Mode: rapid.SampledFrom([]config.Mode{config.ModeRetry, config.ModeRetry, config.ModeDeadLetter,
				config.ModeOff}).Draw(t, "mode"),
		}
		if policy.Mode != config.ModeOff {
			policy.Strategy = rapid.SampledFrom([]config.Strategy{config.StrategyQueues,
				config.StrategyShared}).Draw(t, "strategy")
		}
		if policy.Mode == config.ModeRetry {
			policy.ClassicQueues = rapid.Bool().Draw(t, "classic")
			policy.Delays = rapid.SliceOfN(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour}), 1,
				3).Draw(t, "delays")
		}
		plan, err := topology.New(rapid.SampledFrom([]string{"q", "p", "q.retry"}).Draw(t, "queue"), policy,
			topology.Names{})
		if err != nil {
			t.Fatal(err)
		}
		return plan
	})
	has := func(plans []topology.Plan, name string) bool {
		return slices.ContainsFunc(plans, func(p topology.Plan) bool {
			return p.Queue == name || p.DeadLetterQueue == name ||
				slices.ContainsFunc(p.Queues, func(q topology.Queue) bool { return q.Name == name })
		})
	}
	routed := func(plans []topology.Plan, queue retire.Queue) bool {
		return slices.ContainsFunc(plans, func(p topology.Plan) bool {
			return slices.ContainsFunc(p.Bindings, func(b topology.Binding) bool {
				return b.Exchange == queue.RetryExchange && b.Queue == queue.Name &&
					b.Arguments["amqpretry-delay"] == config.FormatDelay(queue.Delay)
			})
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		now, old := rapid.SliceOfN(plans, 0, 4).Draw(t, "now"), rapid.SliceOfN(plans, 0, 4).Draw(t, "old")
		listed := map[string]retire.Queue{}
		for _, queue := range retire.Obsolete(now, old...) {
			if _, twice := listed[queue.Name]; twice {
				t.Fatalf("%s is listed twice", queue.Name)
			}
			listed[queue.Name] = queue
			if queue.Delay <= 0 || has(now, queue.Name) || !routed(old, queue) {
				t.Fatalf("%+v", queue)
			}
		}
		for _, plan := range old {
			for _, queue := range plan.Queues {
				if _, ok := listed[queue.Name]; queue.Delay > 0 && ok == has(now, queue.Name) {
					t.Fatalf("%s is listed: %t", queue.Name, ok)
				}
			}
		}
	})
}

func TestObsoleteNeverADeadLetterQueue(t *testing.T) {
	// An old plan whose names made a dead-letter queue of what another old plan had for a retry
	// queue.
	names := topology.Names{DeadLetterQueue: func(string) string { return "q.retry.1s" }}
	end, err := topology.New("q", config.Policy{Mode: config.ModeDeadLetter}, names)
	require.NoError(t, err)
	assert.Empty(t, retire.Obsolete(nil, mustPlan(t, "q", config.Policy{Delays: []time.Duration{time.Second}}), end))
}
