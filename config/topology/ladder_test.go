package topology_test

import (
	"fmt"
	"slices"
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

func TestLadderDeclares(t *testing.T) {
	ladder, err := topology.NewLadder(config.Ladder{Prefix: "p", Unit: 500 * time.Millisecond, Radix: 3, Levels: 2})
	require.NoError(t, err)
	assert.Equal(t, 2, ladder.Hops(time.Second))
	assert.Equal(t, 3, ladder.Hops(2*time.Second))

	assert.Equal(t, oneSpace(`
exchange p.v1.500ms.3x2.unroutable fanout
exchange p.v1.500ms.3x2.delivery topic alternate-exchange="p.v1.500ms.3x2.unroutable"
exchange p.v1.500ms.3x2.level-0 topic
exchange p.v1.500ms.3x2.level-1 topic
queue p.v1.500ms.3x2.unroutable x-delivery-limit=2147483647 x-queue-leader-locator="balanced" x-queue-type="quorum"
queue p.v1.500ms.3x2.500ms x-dead-letter-exchange="p.v1.500ms.3x2.delivery" x-dead-letter-strategy="at-least-once" x-delivery-limit=2147483647 x-message-ttl=500 x-overflow="reject-publish" x-queue-leader-locator="balanced" x-queue-type="quorum"
queue p.v1.500ms.3x2.1s x-dead-letter-exchange="p.v1.500ms.3x2.delivery" x-dead-letter-strategy="at-least-once" x-delivery-limit=2147483647 x-message-ttl=1000 x-overflow="reject-publish" x-queue-leader-locator="balanced" x-queue-type="quorum"
queue p.v1.500ms.3x2.1500ms x-dead-letter-exchange="p.v1.500ms.3x2.level-0" x-dead-letter-strategy="at-least-once" x-delivery-limit=2147483647 x-message-ttl=1500 x-overflow="reject-publish" x-queue-leader-locator="balanced" x-queue-type="quorum"
queue p.v1.500ms.3x2.3s x-dead-letter-exchange="p.v1.500ms.3x2.level-0" x-dead-letter-strategy="at-least-once" x-delivery-limit=2147483647 x-message-ttl=3000 x-overflow="reject-publish" x-queue-leader-locator="balanced" x-queue-type="quorum"
binding p.v1.500ms.3x2.unroutable -> p.v1.500ms.3x2.unroutable
binding p.v1.500ms.3x2.level-0 -> p.v1.500ms.3x2.delivery key *.0.#
binding p.v1.500ms.3x2.level-0 -> p.v1.500ms.3x2.500ms key *.1.#
binding p.v1.500ms.3x2.level-0 -> p.v1.500ms.3x2.1s key *.2.#
binding p.v1.500ms.3x2.level-1 -> p.v1.500ms.3x2.level-0 key 0.#
binding p.v1.500ms.3x2.level-1 -> p.v1.500ms.3x2.1500ms key 1.#
binding p.v1.500ms.3x2.level-1 -> p.v1.500ms.3x2.3s key 2.#`),
		oneSpace(ladder.Shared().String()))

	plan, err := topology.New("orders", config.Policy{Strategy: config.StrategyLadder, Ladder: ladder.Config,
		Delays: []time.Duration{time.Second}},
		topology.Names{})
	require.NoError(t, err)
	assert.Equal(t, oneSpace(`
main queue orders as its own config says
delays p.v1.500ms.3x2 shared by all queues with exact delays
exchange orders.retry headers
queue orders.landing x-dead-letter-exchange="" x-dead-letter-routing-key="orders" x-dead-letter-strategy="at-least-once" x-delivery-limit=2147483647 x-message-ttl=0 x-overflow="reject-publish" x-queue-leader-locator="balanced" x-queue-type="quorum"
queue orders.dlq x-delivery-limit=2147483647 x-queue-leader-locator="balanced" x-queue-type="quorum"
binding p.v1.500ms.3x2.delivery -> orders.landing key *.*.q.orders
binding orders.retry -> orders.dlq amqpretry-count="-1" x-match="all"
`), oneSpace(plan.String()))
	exchange, key := plan.End()
	assert.Equal(t, []string{"orders.retry", "orders"}, []string{exchange, key})
	assert.Equal(t, []string{"orders.landing"}, names(plan.ReturnPath().Queues))
	assert.Len(t, plan.ReturnPath().Bindings, 1)

	var channel recorder
	require.NoError(t, plan.Declare(&channel))
	whole := len(channel.calls)
	require.NoError(t, plan.DeclareOwn(&channel))
	assert.Len(t, channel.calls, whole+5)
	assert.Equal(t, 4+5+7+5, whole, "with what the ladder shares")
}

// oneSpace is a table whose columns are as wide as each cell.
func oneSpace(table string) string {
	var lines []string
	for line := range strings.Lines(strings.TrimSpace(table)) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func names(queues []topology.Queue) []string {
	all := make([]string, len(queues))
	for i, q := range queues {
		all[i] = q.Name
	}
	return all
}

// Targets whose names make the worst keys, in pairs that a careless key or pattern would confuse.
var targets = []topology.Target{
	{Key: "orders"}, {Key: "eu.orders"}, {Key: "a.*.b"},
	{Key: "a.x.b"}, {Key: "#"}, {Key: "*"}, {Key: "%2A"},
	{Key: "a..b"}, {Key: "."}, {Key: "x.orders"},
	{Exchange: "orders"}, {Exchange: "orders", Key: "paid"}, {Exchange: "orders.paid"}, {Exchange: "orders", Key: "#"},
	{Exchange: "orders", Key: "paid.eu"}, {Exchange: "orders", Key: "."}, {Exchange: "amq.topic", Key: "eu.*"},
}

// Every message waits for its delay, rounded up to the unit, and reaches its own target and no
// other. The broker's topic exchanges are played here; a test with a broker holds them to it.
func TestLadderRoutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ladder := topology.Ladder{Config: config.Ladder{
			Prefix: "p", Unit: rapid.SampledFrom([]time.Duration{time.Millisecond, 100 * time.Millisecond}).Draw(t, "unit"),
			Radix: rapid.IntRange(2, 16).Draw(t, "radix"), Levels: rapid.IntRange(1, 8).Draw(t, "levels"),
		}}
		plan := ladder.Shared()
		for _, target := range targets {
			own, err := ladder.Of(target, topology.Names{})
			require.NoError(t, err)
			plan.Queues = append(plan.Queues, own.Queues...)
			plan.Bindings = append(plan.Bindings, own.Bindings...)
		}
		target := rapid.SampledFrom(targets).Draw(t, "target")
		delay := time.Duration(rapid.Int64Range(0, int64(min(ladder.Config.Longest(), 1000*time.Hour))).Draw(t, "delay"))

		exchange, key := ladder.Address(target, delay, &amqp.Publishing{})
		require.Equal(t, 1, strings.Count(exchange, "level-"))
		parsed, rounded, ok := ladder.ParseKey(key)
		require.True(t, ok)
		require.Equal(t, target, parsed)
		require.Equal(t, ladder.Config.RoundUp(delay), rounded)

		var waited time.Duration
		for hops := 1; ; hops++ {
			require.LessOrEqual(t, hops, ladder.Hops(delay))
			queue := route(t, plan, exchange, key)
			if queue.Landing {
				require.Equal(t, ladder.Hops(delay), hops)
				require.Equal(t, rounded, waited)
				require.Equal(t, target.Exchange, queue.Arguments["x-dead-letter-exchange"])
				require.Equal(t, target.Key, queue.Arguments["x-dead-letter-routing-key"])
				return
			}
			require.LessOrEqual(t, rounded-waited, ladder.Remaining(queue), queue.Name)
			waited += queue.Delay
			exchange, _ = queue.Arguments["x-dead-letter-exchange"].(string)
		}
	})
}

// route is the only queue to which an exchange routes a key.
func route(t *rapid.T, plan topology.Plan, exchange, key string) topology.Queue {
	var found []topology.Binding
	for _, b := range plan.Bindings {
		if b.Exchange == exchange && topicMatches(strings.Split(b.Key, "."), strings.Split(key, ".")) {
			found = append(found, b)
		}
	}
	require.Len(t, found, 1, "%s from %s", key, exchange)
	if found[0].ToExchange != "" {
		return route(t, plan, found[0].ToExchange, key)
	}
	i := slices.IndexFunc(plan.Queues, func(q topology.Queue) bool { return q.Name == found[0].Queue })
	require.GreaterOrEqual(t, i, 0)
	return plan.Queues[i]
}

func topicMatches(pattern, words []string) bool {
	switch {
	case len(pattern) == 0:
		return len(words) == 0
	case pattern[0] == "#":
		return topicMatches(pattern[1:], words) || len(words) > 0 && topicMatches(pattern, words[1:])
	default:
		return len(words) > 0 && (pattern[0] == "*" || pattern[0] == words[0]) && topicMatches(pattern[1:], words[1:])
	}
}

func TestLadderNames(t *testing.T) {
	policy := config.Policy{Strategy: config.StrategyLadder}
	fits := strings.Repeat("q", 255-len("0.0.0.0.0.0.q."))
	short := topology.Names{Landing: func(topology.Target) string { return "l" }, DeadLetterQueue: func(string) string {
		return "d"
	}, RetryExchange: func(string) string { return "r" }}
	_, err := topology.New(fits, policy, short)
	require.NoError(t, err)
	_, err = topology.New(fits+"q", policy, short)
	var long *topology.NameError
	require.ErrorAs(t, err, &long)
	assert.ErrorContains(t, err, "has 256 bytes with the 6 digits of a delay, the broker takes 255")
	_, err = topology.New("%"+fits[2:], policy, short)
	require.Error(t, err, "a % is written as three bytes")

	same := topology.Names{Landing: func(t topology.Target) string { return t.Key }}
	_, err = topology.New("orders", policy, same)
	assert.ErrorContains(t, err, "has the same name as the main queue")

	a, err := topology.New("orders", policy, topology.Names{})
	require.NoError(t, err)
	b, err := topology.New("amqpretry.delay.v1.100ms.10x6.1s", config.Policy{}, topology.Names{})
	require.NoError(t, err)
	require.NoError(t, topology.Check(a, a))
	assert.ErrorContains(t, topology.Check(a, b), "belongs to")

	assert.Equal(t, "orders.exchange.landing", topology.Names{}.WithDefaults().Landing(topology.Target{Exchange: "orders"}))
	assert.Contains(t, topology.Names{}.RetryQueues("orders", "1s"), "orders.landing",
		"what comes through it has waited, whatever the policy is by then")
}

func TestLadderParsesNoOtherKeys(t *testing.T) {
	var ladder topology.Ladder
	for _, key := range []string{"", "orders", "0.0.0.1.0.0", "0.0.0.1.0.0.orders", "0.0.0.1.0.0.q", "0.0.0.a.0.0.q.o",
		"0.0.0.01.0.0.q.o", "-1.0.0.0.0.0.q.o", "0.0.0.1.0.q.o", "0.0.0.1.0.0.z.o", "x.0.0.1.0.0.q.o"} {
		_, _, ok := ladder.ParseKey(key)
		assert.False(t, ok, key)
	}
}

// What the broker would act on while a message waits is taken from it, and only from it.
func TestLadderAddress(t *testing.T) {
	headers := amqp.Table{"x-death": []any{}, "CC": []any{"b"}, "BCC": []any{"c"}, "x-opt-delivery-time": int64(1),
		"x-delivery-count": int64(3), "x-first-death-queue": "q", "mine": "kept", "x-mine": "kept"}
	before := fmt.Sprint(headers)
	message := amqp.Publishing{Headers: headers, Expiration: "20", Priority: 9, DeliveryMode: 1}
	exchange, key := topology.Ladder{}.Address(topology.Target{Key: "orders"}, 37*time.Second, &message)
	assert.Equal(t, "amqpretry.delay.v1.100ms.10x6.level-2", exchange)
	assert.Equal(t, "0.0.0.3.7.0.q.orders", key)
	assert.Equal(t, amqp.Table{"mine": "kept", "x-mine": "kept"}, message.Headers)
	assert.Empty(t, message.Expiration)
	assert.EqualValues(t, 4, message.Priority)
	assert.Equal(t, before, fmt.Sprint(headers))

	plain := amqp.Publishing{Headers: amqp.Table{"mine": 1}, Priority: 3}
	topology.Ladder{}.Address(topology.Target{Key: "orders"}, time.Second, &plain)
	assert.EqualValues(t, 3, plain.Priority)
}

func TestLadderDefinitions(t *testing.T) {
	policy := config.Policy{Strategy: config.StrategyLadder, Delays: []time.Duration{100 * time.Millisecond},
		Ladder: config.Ladder{Levels: 2, Radix: 2}}
	var queues []topology.MainQueue
	for _, queue := range []string{"orders", "payments"} {
		plan, err := topology.New(queue, policy, topology.Names{})
		require.NoError(t, err)
		queues = append(queues, topology.MainQueue{Plan: plan})
	}
	file, err := topology.Definitions("/", queues...)
	require.NoError(t, err)
	text := string(file)
	assert.Equal(t, 1, strings.Count(text, `"name": "amqpretry.delay.v1.100ms.2x2.delivery"`), "what is shared comes once")
	assert.Contains(t, text, `"alternate-exchange": "amqpretry.delay.v1.100ms.2x2.unroutable"`)
	assert.Equal(t, 2, strings.Count(text, `"destination_type": "exchange"`))
	assert.Contains(t, text, `"routing_key": "*.*.q.payments"`)

	file, err = topology.Definitions("/", topology.MainQueue{Plan: topology.Ladder{}.Shared()})
	require.NoError(t, err)
	assert.NotContains(t, string(file), `"name": ""`, "a ladder alone has no main queue")
}

func TestLadderIsDrawn(t *testing.T) {
	plan, err := topology.New("orders", config.Policy{Strategy: config.StrategyLadder}, topology.Names{})
	require.NoError(t, err)
	assert.Equal(t, `flowchart LR
    publisher(["publisher"]) --> main["orders"]
    main --> consumer(["consumer"])
    delays["amqpretry.delay.v1.100ms.10x6"]
    consumer -- "failed" --> delays
    exchange1{{"orders.retry"}}
    consumer -- "the end" --> exchange1
    queue1["orders.landing"]
    delays -- "after any delay" --> queue1
    queue1 -- "at once" --> main
    queue2[("orders.dlq")]
    exchange1 -- "amqpretry-count: -1" --> queue2
`, plan.Mermaid())
	assert.Contains(t, plan.DOT(), `label="amqpretry.delay.v1.100ms.10x6"`)
}

// A service can have exact retries and delayed publishing for the same queue, and publish with
// delays to several exchanges. These are no collisions, and one file defines all of it.
func TestDefinitions_OfSeveralTargets(t *testing.T) {
	t.Parallel()

	ladder, err := topology.NewLadder(config.ScheduleLadder())
	require.NoError(t, err)
	part := func(target topology.Target) topology.MainQueue {
		plan, err := ladder.Of(target, topology.Names{})
		require.NoError(t, err)
		plan.Ladder = &ladder
		if target.Exchange == "" {
			plan.Queue = target.Key
		}

		return topology.MainQueue{Plan: plan, Arguments: amqp.Table{"x-queue-type": "quorum"}}
	}
	retries, err := topology.New("orders", config.Policy{Strategy: config.StrategyLadder}, topology.Names{})
	require.NoError(t, err)
	orders := topology.MainQueue{Plan: retries, Arguments: amqp.Table{"x-queue-type": "quorum"}}
	later := part(topology.Target{Key: "orders"})
	file, err := topology.Definitions("/", orders, later, part(topology.Target{Exchange: "events"}),
		part(topology.Target{Exchange: "news"}))
	require.NoError(t, err)
	for _, queue := range []string{"orders", "orders.landing", "events.exchange.landing", "news.exchange.landing"} {
		assert.Equal(t, 1, strings.Count(string(file), `"name": "`+queue+`"`), queue)
	}
	require.NoError(t, topology.Check(later.Plan, retries))

	clash, err := ladder.Of(topology.Target{Key: "other"}, topology.Names{
		Landing: func(topology.Target) string { return "orders.landing" }})
	require.NoError(t, err)
	clash.Ladder, clash.Queue = &ladder, "other"
	require.ErrorContains(t, topology.Check(retries, clash),
		`queue "orders.landing": belongs to the topology of queue "orders"; give another name through Names`)

	own, err := topology.New(ladder.WaitQueue(0, 1), config.Policy{}, topology.Names{})
	require.NoError(t, err)
	require.ErrorContains(t, topology.Check(own, later.Plan), "and is a queue of the ladder; give it another name")
}
