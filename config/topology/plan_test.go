package topology_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

func mustPlan(t testing.TB, queue string, policy config.Policy) topology.Plan {
	t.Helper()
	plan, err := topology.New(queue, policy, topology.Names{})
	require.NoError(t, err)
	return plan
}

func TestNewRetryPlan(t *testing.T) {
	plan := mustPlan(t, "orders", config.Policy{Delays: []time.Duration{30 * time.Second, 1500 * time.Millisecond,
		30 * time.Second}})
	retry := func(ms int64) amqp.Table {
		return amqp.Table{
			"x-queue-type":              "quorum",
			"x-message-ttl":             ms,
			"x-dead-letter-exchange":    "",
			"x-dead-letter-routing-key": "orders",
			"x-dead-letter-strategy":    "at-least-once",
			"x-overflow":                "reject-publish",
			"x-queue-leader-locator":    "balanced",
			"x-delivery-limit":          int64(2147483647),
		}
	}
	assert.Equal(t, topology.Plan{
		Queue:           "orders",
		RetryExchange:   "orders.retry",
		DeadLetterQueue: "orders.dlq",
		Exchanges:       []topology.Exchange{{Name: "orders.retry", Type: "headers", Durable: true}},
		Queues: []topology.Queue{
			{Name: "orders.retry.1500ms", Delay: 1500 * time.Millisecond, Arguments: retry(1500)},
			{Name: "orders.retry.30s", Delay: 30 * time.Second, Arguments: retry(30000)},
			{Name: "orders.dlq", Arguments: amqp.Table{
				"x-queue-type":           "quorum",
				"x-queue-leader-locator": "balanced",
				"x-delivery-limit":       int64(2147483647),
			}},
		},
		Bindings: []topology.Binding{
			{Exchange: "orders.retry", Queue: "orders.retry.1500ms", Arguments: amqp.Table{"x-match": "all",
				"amqpretry-delay": "1500ms"}},
			{Exchange: "orders.retry", Queue: "orders.retry.30s", Arguments: amqp.Table{"x-match": "all",
				"amqpretry-delay": "30s"}},
			{Exchange: "orders.retry", Queue: "orders.dlq", Arguments: amqp.Table{"x-match": "all",
				"amqpretry-count": "-1"}},
		},
	}, plan)
}

func TestNewClassicRetryQueue(t *testing.T) {
	plan := mustPlan(t, "orders", config.Policy{Delays: []time.Duration{time.Hour}, ClassicQueues: true})
	require.Len(t, plan.Queues, 2)
	assert.Equal(t, topology.Queue{Name: "orders.retry.1h.classic", Delay: time.Hour, Arguments: amqp.Table{
		"x-queue-type":              "classic",
		"x-message-ttl":             int64(3600000),
		"x-dead-letter-exchange":    "",
		"x-dead-letter-routing-key": "orders",
	}}, plan.Queues[0])
	assert.Equal(t, "quorum", plan.Queues[1].Arguments["x-queue-type"], "dead letters are always kept replicated")
}

func TestNewDeadLetterPlanHasNoRetryQueues(t *testing.T) {
	plan := mustPlan(t, "orders", config.Policy{Mode: config.ModeDeadLetter})
	assert.Equal(t, []topology.Exchange{{Name: "orders.retry", Type: "headers", Durable: true}}, plan.Exchanges)
	require.Len(t, plan.Queues, 1)
	assert.Equal(t, "orders.dlq", plan.Queues[0].Name)
	require.Len(t, plan.Bindings, 1)
	assert.Equal(t, "orders.dlq", plan.Bindings[0].Queue)
}

func TestNewOffPlanIsEmpty(t *testing.T) {
	assert.Equal(t, topology.Plan{Queue: "orders"}, mustPlan(t, "orders", config.Policy{Mode: config.ModeOff}))
}

func TestNewDefaultPolicy(t *testing.T) {
	var names []string
	for _, q := range mustPlan(t, "orders", config.Policy{}).Queues {
		names = append(names, q.Name)
	}
	assert.Equal(t, []string{"orders.retry.1s", "orders.retry.5s", "orders.retry.30s", "orders.retry.2m",
		"orders.retry.10m", "orders.dlq"}, names)
}

// Whatever the policy, a failed message finds exactly one queue: one binding per delay, one for the
// end, no two alike.
func TestEveryScheduledDelayHasExactlyOneBinding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		delays := rapid.SliceOfN(rapid.Int64Range(1, 315_360_000_000), 1, 64).Draw(t, "Delays")
		policy := config.Policy{}
		for _, ms := range delays {
			policy.Delays = append(policy.Delays, time.Duration(ms)*time.Millisecond)
		}
		plan, err := topology.New("q", policy, topology.Names{})
		if err != nil {
			t.Fatal(err)
		}
		for _, delay := range policy.Schedule() {
			var found []string
			for _, b := range plan.Bindings {
				if b.Arguments["amqpretry-delay"] == config.FormatDelay(delay) {
					found = append(found, b.Queue)
				}
			}
			if len(found) != 1 {
				t.Fatalf("delay %s is bound to %v", delay, found)
			}
			for _, q := range plan.Queues {
				if q.Name == found[0] && q.Arguments["x-message-ttl"] != delay.Milliseconds() {
					t.Fatalf("queue %s waits %v instead of %s", q.Name, q.Arguments["x-message-ttl"], delay)
				}
			}
		}
	})
}

func nameErrors(t *testing.T, err error) (found []string) {
	t.Helper()
	var walk func(error)
	walk = func(err error) {
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range joined.Unwrap() {
				walk(e)
			}
			return
		}
		var e *topology.NameError
		require.ErrorAs(t, err, &e)
		assert.NotEmpty(t, e.Problem)
		found = append(found, e.Object+" "+e.Name)
	}
	require.Error(t, err)
	walk(err)
	return found
}

func TestNewRefusesNames(t *testing.T) {
	one := config.Policy{Delays: []time.Duration{time.Second}}
	retryQueue := func(name string) topology.Names {
		return topology.Names{RetryQueue: func(topology.RetryQueueParams) string { return name }}
	}
	for name, test := range map[string]struct {
		queue   string
		names   topology.Names
		problem string
	}{
		"empty main queue":     {"", topology.Names{}, "the name is empty"},
		"server's main queue":  {"amq.gen-1", topology.Names{}, "names that begin with amq."},
		"line break":           {"a\nb", topology.Names{}, "line break"},
		"carriage return":      {"a\rb", topology.Names{}, "line break"},
		"not UTF-8":            {"a\xff", topology.Names{}, "not valid UTF-8"},
		"empty retry queue":    {"q", retryQueue(""), "the name is empty"},
		"server's retry queue": {"q", retryQueue("amq.retry"), "names that begin with amq."},
		"long retry queue": {"q", retryQueue(strings.Repeat("é", 128)), "the name has 256 bytes, the broker " +
			"takes 255"},
		"empty retry exchange": {"q", topology.Names{RetryExchange: func(string) string {
			return ""
		}}, "Names.RetryExchange"},
		"empty DLQ": {"q", topology.Names{DeadLetterQueue: func(string) string {
			return ""
		}}, "Names.DeadLetterQueue"},
		"retry = main": {"q", retryQueue("q"), "the same name as the main queue"},
		"retry = DLQ":  {"q", retryQueue("q.dlq"), "the same name as the retry queue for 1s"},
		"DLQ = main": {"q", topology.Names{DeadLetterQueue: func(q string) string {
			return q
		}}, "the same name as the main queue"},
	} {
		t.Run(name, func(t *testing.T) {
			plan, err := topology.New(test.queue, one, test.names)
			require.ErrorContains(t, err, test.problem)
			nameErrors(t, err)
			assert.Zero(t, plan)
		})
	}
}

func TestNewTakesNamesUpToTheBrokersBound(t *testing.T) {
	suffix := len(".retry.1s")
	_, err := topology.New(strings.Repeat("q", 255-suffix), config.Policy{Delays: []time.Duration{time.Second}},
		topology.Names{})
	require.NoError(t, err)
	_, err = topology.New(strings.Repeat("q", 255-suffix+1), config.Policy{Delays: []time.Duration{time.Second}},
		topology.Names{})
	require.ErrorContains(t, err, "256 bytes")
}

func TestNewReportsEveryNameAtOnce(t *testing.T) {
	_, err := topology.New("amq.q", config.Policy{Delays: []time.Duration{time.Second, time.Minute}}, topology.Names{
		RetryExchange:   func(string) string { return "" },
		RetryQueue:      func(topology.RetryQueueParams) string { return "same" },
		DeadLetterQueue: func(string) string { return "amq.dlq" },
	})
	assert.Equal(t, []string{"main queue amq.q", "retry exchange ", "retry queue for 1m same",
		"dead-letter queue amq.dlq"}, nameErrors(t, err))
}

func TestNewReportsThePolicyWithThePath(t *testing.T) {
	_, err := topology.New("q", config.Policy{Delays: []time.Duration{0, -1}}, topology.Names{})
	var field *config.FieldError
	require.ErrorAs(t, err, &field)
	assert.Equal(t, "Delays[0]", field.Path)
	assert.ErrorContains(t, err, "Delays[1]")
}

func TestCustomNamesGetWhatTheyMustDependOn(t *testing.T) {
	var got []topology.RetryQueueParams
	_, err := topology.New("q", config.Policy{Delays: []time.Duration{90 * time.Second},
		ClassicQueues: true}, topology.Names{
		RetryQueue: func(p topology.RetryQueueParams) string { got = append(got, p); return "x" },
	})
	require.NoError(t, err)
	assert.Equal(t, []topology.RetryQueueParams{{Queue: "q", Delay: "90s", Classic: true}}, got)
}

func TestCheck(t *testing.T) {
	one := config.Policy{Delays: []time.Duration{time.Second}}
	off := config.Policy{Mode: config.ModeOff}
	plan := func(queue string, policy config.Policy, names topology.Names) topology.Plan {
		p, err := topology.New(queue, policy, names)
		require.NoError(t, err)
		return p
	}
	sharedExchange := topology.Names{RetryExchange: func(string) string { return "retry" }}
	sharedDLQ := topology.Names{DeadLetterQueue: func(string) string { return "dead" }}
	sharedRetry := topology.Names{RetryQueue: func(p topology.RetryQueueParams) string { return "retry." + p.Delay }}
	for name, test := range map[string]struct {
		plans []topology.Plan
		want  []string
	}{
		"none": {nil, nil},
		"different queues": {[]topology.Plan{plan("a", one, topology.Names{}), plan("b", one, topology.Names{})},
			nil},
		"one queue twice, alike": {[]topology.Plan{plan("a", one, topology.Names{}), plan("a", one, topology.Names{})},
			nil},
		"one queue, two policies": {
			[]topology.Plan{plan("a", one, topology.Names{}), plan("a", off, topology.Names{})},
			[]string{"main queue a"}},
		"shared exchange": {[]topology.Plan{plan("a", one, sharedExchange), plan("b", one, sharedExchange)},
			[]string{"exchange retry"}},
		"shared DLQ": {[]topology.Plan{plan("a", one, sharedDLQ), plan("b", one, sharedDLQ)}, []string{"queue dead"}},
		"shared retry": {[]topology.Plan{plan("a", one, sharedRetry), plan("b", one, sharedRetry)},
			[]string{"queue retry.1s"}},
		"DLQ is another's main queue": {
			[]topology.Plan{plan("a", one, topology.Names{}), plan("a.dlq", off, topology.Names{})},
			[]string{"queue a.dlq"}},
		"retry queue is another's main queue": {
			[]topology.Plan{plan("a.retry.1s", off, topology.Names{}), plan("a", one, topology.Names{})},
			[]string{"queue a.retry.1s"}},
		"exchange and queue of one name": {
			[]topology.Plan{plan("a", one, topology.Names{}), plan("a.retry", off, topology.Names{})}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			err := topology.Check(test.plans...)
			if test.want == nil {
				require.NoError(t, err)
				return
			}
			assert.Equal(t, test.want, nameErrors(t, err))
		})
	}
}

// recorder stands for a channel on which the nth call fails.
type recorder struct {
	calls []string
	fail  int
}

var errBroken = errors.New("broken")

func (r *recorder) call(format string, args ...any) error {
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
	if len(r.calls) == r.fail {
		return errBroken
	}
	return nil
}

func (r *recorder) ExchangeDeclare(name, kind string, durable, autoDelete, internal, noWait bool,
	args amqp.Table) error {
	return r.call("exchange %s %s durable=%t %t", name, kind, durable, autoDelete || internal || noWait ||
		len(args) > 0)
}

func (r *recorder) ExchangeBind(destination, key, source string, noWait bool, args amqp.Table) error {
	return r.call("bind exchange %s %s %s %t args=%d", destination, key, source, noWait, len(args))
}

func (r *recorder) QueueDeclare(name string, durable, autoDelete, exclusive, noWait bool, args amqp.Table) (amqp.Queue,
	error) {
	return amqp.Queue{}, r.call("queue %s durable=%t %t args=%d", name, durable, autoDelete || exclusive || noWait,
		len(args))
}

func (r *recorder) QueueBind(name, key, exchange string, noWait bool, args amqp.Table) error {
	return r.call("bind %s key=%s %s %t args=%d", name, key, exchange, noWait, len(args))
}

func TestDeclareOrder(t *testing.T) {
	ch := &recorder{}
	require.NoError(t, mustPlan(t, "q", config.Policy{Delays: []time.Duration{time.Second}}).Declare(ch))
	assert.Equal(t, []string{
		"exchange q.retry headers durable=true false",
		"queue q.retry.1s durable=true false args=8",
		"queue q.dlq durable=true false args=3",
		"bind q.retry.1s key= q.retry false args=2",
		"bind q.dlq key= q.retry false args=2",
	}, ch.calls)
}

func TestDeclareStopsAtTheFirstErrorAndNamesTheObject(t *testing.T) {
	plan := mustPlan(t, "q", config.Policy{Delays: []time.Duration{time.Second}})
	for i, want := range []string{`exchange "q.retry"`, `queue "q.retry.1s"`, `queue "q.dlq"`, `queue "q.retry.1s"`,
		`queue "q.dlq"`} {
		ch := &recorder{fail: i + 1}
		err := plan.Declare(ch)
		require.ErrorIs(t, err, errBroken)
		var declare *topology.DeclareError
		require.ErrorAs(t, err, &declare)
		assert.Equal(t, want, fmt.Sprintf("%s %q", declare.Kind, declare.Name))
		assert.Len(t, ch.calls, i+1)
	}
}
