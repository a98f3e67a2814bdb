package examples

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// outputs are what programs print. Lines about one message, those with the same text before their
// first colon, come in this order; lines about different messages come in any.
var outputs = map[string]string{
	"after": "the bank was called 2 times\n",
	"dead-letters": `order-1: permanent after 1 calls of "ship": no order: invalid character 'o' in literal null (expecting 'u')
order-1:   call 1: no order: invalid character 'o' in literal null (expecting 'u')
order-2: exhausted after 2 calls of "ship": the warehouse does not answer
order-2:   call 1: the warehouse does not answer
order-2:   call 2: the warehouse does not answer
`,
	"delayed-publish": `order-1: please pay, said too early: false
order-2: no reminder, it is paid
order-3: please pay, said too early: false
mails: order-4 is on its way
stock: order-4 has left
`,
	"exact-delays": `order-1: attempt 1, 429 Too Many Requests
order-1: waits 2s
order-1: attempt 2, charged
burst: 60 retries, some in each 200ms from 200ms to 1s
`,
	"graceful-shutdown": `order-1: packing
order-1: packed
order-2: packing
SIGTERM: closing
order-2: packed
closed: 1 order is left for the next pod
`,
	"policy-file": `orders.eu: [100ms 200ms]
mails.eu: [100ms]
orders.audit: [100ms 200ms]
order: attempt 1
order: attempt 2
order: attempt 3
order: dead letter, exhausted, calls: 3
template: attempt 1
template: dead letter, permanent, calls: 1
mail: attempt 1
mail: attempt 2
mail: dead letter, exhausted, calls: 2
audit: attempt 1
audit: dead letter, exhausted, calls: 1
`,
	"processor": `order-1: handled, failures before: <nil>
order-2: rejected, failures before: <nil>
order-2: handled, failures before: 1
order-3: rejected, failures before: <nil>
order-3: rejected, failures before: 1
order-3: rejected, failures before: 2
order-3: dead letter, rejected
`,
	"strategies": `queues: attempt 1 of 3, fresh, errors known: 0
queues: failed, a copy waits for 1s
queues: attempt 2 of 3, after 1s, errors known: 1
queues: failed, a copy waits for 1s
queues: attempt 3 of 3, after 1s, errors known: 2
queues: dead letter, exhausted after 3 calls: the warehouse is closed (3)
cycle: attempt 1 of 3, fresh, errors known: 0
cycle: failed, the broker brings it back
cycle: attempt 2 of 3, after 1s, errors known: 0
cycle: failed, the broker brings it back
cycle: attempt 3 of 3, after 1s, errors known: 0
cycle: dead letter, exhausted after 3 calls: the warehouse is closed (3)
redelivery: attempt 1 of 3, fresh, errors known: 0
redelivery: failed, the broker brings it back
redelivery: attempt 2 of 3, at once, errors known: 0
redelivery: failed, the broker brings it back
redelivery: attempt 3 of 3, at once, errors known: 0
redelivery: dead letter, exhausted after 3 calls: the warehouse is closed (3)
`,
}

const nativeRuns = `native: attempt 1 of 3, fresh, errors known: 0
native: failed, the broker brings it back
native: attempt 2 of 3, after 1s, errors known: 0
native: failed, the broker brings it back
native: attempt 3 of 3, after 1s, errors known: 0
native: dead letter, exhausted after 3 calls: the warehouse is closed (3)
`

func TestOutputs(t *testing.T) {
	t.Parallel()
	native := nativeRuns
	if !rabbit.New(t, brokertest.URI(t)).AtLeast(4, 3) {
		native = "native: not on this broker, it needs RabbitMQ 4.3 or later\n"
	}
	for name, want := range outputs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "strategies" {
				want += native
			}
			got := output(t, name)
			assert.Equal(t, byMessage(want), byMessage(got), "the example printed\n%s", got)
		})
	}

	checked := append(slices.Collect(maps.Keys(outputs)), "before", "shop", "quickstart") // these below
	for _, program := range build(t) {
		assert.Contains(t, checked, filepath.Base(program), "a program without a test")
	}
}

func byMessage(output string) map[string][]string {
	lines := map[string][]string{}
	for line := range strings.Lines(output) {
		message, _, _ := strings.Cut(line, ":")
		lines[message] = append(lines[message], line)
	}

	return lines
}

// output runs a program on the broker of the tests.
func output(t *testing.T, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	command := on(ctx, brokertest.URI(t), append([]string{program(t, name)}, arguments[name]...))
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)

	return string(out)
}

func TestBefore(t *testing.T) {
	t.Parallel()

	var calls int
	got := output(t, "before")
	_, err := fmt.Sscanf(got, "the bank was called %d times\n", &calls)
	require.NoError(t, err, "%q", got)
	assert.Greater(t, calls, 20, "a plain nack spins")
}

// Five lines make the difference, as README says, and the error of the first of them.
func TestBeforeAndAfter(t *testing.T) {
	t.Parallel()

	read := func(file string) []string {
		code, err := os.ReadFile(file)
		require.NoError(t, err)
		_, text, found := strings.Cut(string(code), "\nimport (")
		require.True(t, found)

		return strings.Split(text, "\n")
	}
	before, after := read("existing-router/before/main.go"), read("existing-router/after/main.go")
	var added []string
	for _, line := range after {
		if at := slices.Index(before, line); at >= 0 {
			before = slices.Delete(before, at, at+1)
		} else {
			added = append(added, strings.TrimSpace(line))
		}
	}
	assert.Equal(t, []string{"	subscriber, err := amqp.NewSubscriber(conf, logger)"}, before, "lines that go")
	assert.Equal(t, []string{
		`"github.com/amqpretry/watermill-retry/amqpretry"`, `"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"`,
		"retrier, err := amqpv2.New(conf, amqpretry.Options{Logger: logger}) // 1",
		"defer retrier.Close()                    // 2: after the router",
		"router.AddMiddleware(retrier.Middleware) // 3: before all other middlewares",
		"router.AddPlugin(retrier.CheckRouter)    // 4: Run fails if a middleware would lose retries",
		"subscriber, err := retrier.NewSubscriber() // 5: instead of amqp.NewSubscriber",
		"if err != nil {", "return err", "}",
	}, added, "lines that come")
}

// Of 500 messages five fail, one of them for ever: seven failures, six retries, one dead letter.
var series = []string{
	`amqpretry_calls_total{handler="ship",outcome="error",topic="orders"} 7`,
	`amqpretry_calls_total{handler="ship",outcome="succeeded",topic="orders"} 499`,
	`amqpretry_call_duration_seconds_count{handler="ship",outcome="succeeded",topic="orders"} 499`,
	`amqpretry_messages_total{handler="ship",result="succeeded",topic="orders"} 499`,
	`amqpretry_messages_total{handler="ship",result="retried",topic="orders"} 6`,
	`amqpretry_messages_total{handler="ship",result="dead-lettered",topic="orders"} 1`,
	`amqpretry_dead_letters_total{reason="exhausted",topic="orders"} 1`,
	`amqpretry_attempts_until_success_sum{handler="ship",topic="orders"} 503`,
	`amqpretry_recovery_duration_seconds_count{handler="ship",topic="orders"} 4`,
	`amqpretry_forward_duration_seconds_count{topic="orders"} 7`,
	`amqpretry_consuming_subscriptions{topic="orders"} 1`,
	`amqpretry_connections_opened_total{connection="forwarder"} 1`,
	`amqpretry_connections_opened_total{connection="subscriber"} 1`,
	`amqpretry_queue_depths_up 1`,
	`amqpretry_queue_messages_ready{main_queue="orders",queue="orders.dlq",role="dead-letter"} 1`,
}

func TestMetrics(t *testing.T) {
	t.Parallel()

	got := regexp.MustCompile(`metrics-\w+`).ReplaceAllString(output(t, "shop"), "orders")
	for _, line := range series {
		assert.Regexp(t, "(?m)^"+regexp.QuoteMeta(line)+"$", got)
	}
	assert.NotContains(t, got, "requeued", "nothing that did not happen")
	assert.NotContains(t, got, "held")
}

// TestQuickstart checks the whole output, apart from what differs from run to run. It is that in
// README.
func TestQuickstart(t *testing.T) {
	t.Parallel()

	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, behind, found := strings.Cut(string(readme), "[examples/quickstart](examples/quickstart/main.go)")
	require.True(t, found)
	_, block, found := strings.Cut(behind, "```\n")
	require.True(t, found)
	block, _, found = strings.Cut(block, "```\n")
	require.True(t, found)
	assert.Equal(t, normalized(block), normalized(output(t, "quickstart")))
}

// differs is what is not the same in every run.
var differs = regexp.MustCompile(`quickstart-\w+|\d{4}-\d\d-\d\dT[\d:.]+Z`)

// normalized makes outputs comparable. Tenths of a second are what the example prints, and a busy
// machine may be late by some; messages that are due at the same time may overtake each other.
func normalized(output string) []string {
	output = differs.ReplaceAllString(output, "…")
	output = regexp.MustCompile(`(?m)^(  \d)\.\d`).ReplaceAllString(output, "$1.x")
	attempts, letters, _ := strings.Cut(output, "\n\n")
	sorted := strings.Split(attempts, "\n")
	slices.Sort(sorted)

	return append(sorted, strings.Split(letters, "\n")...)
}
