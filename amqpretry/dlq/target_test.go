package dlq_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/management"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// Messages do not go to a queue from which they would come back to a main queue.
func TestTargetThatReturns(t *testing.T) {
	t.Parallel()
	f := connected(t, brokertest.URI(t))
	f.declared(amqp091.Table{"x-queue-type": "classic"}, nil)
	f.fillWith(1, func(n int) amqp091.Publishing { return deadletter.New(f.main, n) })
	var field *config.FieldError
	for _, to := range []string{f.main + ".retry.30s", "another.retry.1h.classic", "retry.30s", f.main + ".landing"} {
		for _, kind := range []dlq.Kind{dlq.Replay, dlq.Move} {
			_, err := f.queue.Run(t.Context(), dlq.Plan{Kind: kind, To: to})
			require.ErrorAs(t, err, &field, "%s to %s", kind, to)
			assert.Equal(t, "Plan.To", field.Path)
			assert.Equal(t, strconv.Quote(to), field.Found)
			_, err = f.queue.Plan(t.Context(), dlq.Plan{Kind: kind, To: to})
			assert.ErrorAs(t, err, &field)
		}
		_, err := f.queue.Import(t.Context(), strings.NewReader(""), dlq.ImportOptions{To: to})
		require.ErrorAs(t, err, &field, to)
		assert.Equal(t, "ImportOptions.To", field.Path)
	}
	assert.Equal(t, 1, f.Depth(f.main+".dlq"))
}

// A target confirms messages that it drops, so a run that would lose some of them that way is
// refused.
func TestTargetThatDrops(t *testing.T) {
	t.Parallel()
	const deadLetters = 30
	const first = 10 // so that all bodies have the same size
	body := int64(deadLetters * len(deadletter.Body(first)))
	for name, test := range map[string]struct {
		arguments amqp091.Table
		already   int // in the target
		dropped   int
		why       string
		warns     string // instead, if it loses nothing
	}{
		"length": {arguments: amqp091.Table{"x-max-length": 5}, dropped: 25,
			why: "would drop 25 of 30 messages (max-length 5, overflow drop-head)"},
		"length of a quorum queue": {arguments: amqp091.Table{"x-queue-type": "quorum", "x-max-length": int64(5),
			"x-overflow": "drop-head"}, dropped: 25,
			why: "would drop 25 of 30 messages (max-length 5, overflow drop-head)"},
		"some in it": {arguments: amqp091.Table{"x-max-length": 10}, already: 3, dropped: 23,
			why: "would drop 23 of 33 messages (max-length 10, overflow drop-head, 3 in it already)"},
		"bytes": {arguments: amqp091.Table{"x-max-length-bytes": body / 2}, dropped: 15, why: "max-length-bytes"},
		"time":  {arguments: amqp091.Table{"x-message-ttl": 3_600_000}, dropped: 30, why: "message TTL 1h0m0s"},
		"room":  {arguments: amqp091.Table{"x-max-length": 30}},
		"dead-letters them": {arguments: amqp091.Table{"x-max-length": 5, "x-dead-letter-exchange": "amq.fanout"},
			warns: "would dead-letter again 25 of 30 messages (max-length 5, overflow drop-head)"},
		"rejects them": {arguments: amqp091.Table{"x-max-length": 40, "x-overflow": "reject-publish"}, already: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := connected(t, brokertest.URI(t))
			arguments := amqp091.Table{"x-queue-type": "classic"}
			for key, value := range test.arguments {
				arguments[key] = value
			}
			f.declared(arguments, nil)
			f.fillWith(deadLetters, func(n int) amqp091.Publishing { return deadletter.New(f.main, first+n) })
			f.Publish(f.main, rabbit.Messages(rabbit.Numbered("before", test.already)...)...)

			planned, err := f.queue.Plan(t.Context(), dlq.Plan{Kind: dlq.Replay})
			require.NoError(t, err)
			assert.Equal(t, body, planned.Counted.Bytes)
			assert.Equal(t, arguments["x-queue-type"], planned.Counted.Target.Type)
			assert.Equal(t, test.dropped > 0, planned.Check() != nil)
			warnings := strings.Join(planned.Counted.Warnings, "; ")
			assert.Contains(t, warnings, f.main+" has no consumer")
			assert.Contains(t, warnings, test.why+test.warns)

			undo := &bytes.Buffer{}
			runs := map[string]func(allow bool) (dlq.Report, error){
				"replay": func(allow bool) (dlq.Report, error) {
					return f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, AllowDrop: allow, Undo: undo})
				},
				"move": func(allow bool) (dlq.Report, error) {
					return f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Move, To: f.main, AllowDrop: allow})
				},
			}
			run := runs["replay"]
			if test.dropped > 0 {
				for name, run := range runs {
					var drops *dlq.DropError
					_, err := run(false)
					require.ErrorAs(t, err, &drops, name)
					assert.Equal(t, test.dropped, drops.Dropped, name)
					assert.ErrorContains(t, err, test.why, name)
					assert.ErrorContains(t, err, "--allow-drop", name)
				}
				f.Has(f.queue.Name(), deadLetters)
				f.Has(f.main, test.already)
				assert.Empty(t, undo.String())
			}

			report, err := run(test.dropped > 0)
			require.NoError(t, err)
			assert.Equal(t, deadLetters, report.Done)
			assert.Equal(t, body, report.Bytes)
			switch name {
			case "time":
				f.Has(f.main, deadLetters)
			case "dead-letters them":
				assert.Equal(t, 25, report.Dropped)
			default:
				assert.Equal(t, test.dropped, report.Dropped)
				f.Has(f.main, test.already+deadLetters-test.dropped)
			}
		})
	}
}

// What fits is sent.
func TestTargetThatDrops_Limit(t *testing.T) {
	t.Parallel()
	f := connected(t, brokertest.URI(t)).declared(amqp091.Table{"x-queue-type": "classic", "x-max-length": 5}, nil)
	f.fill(20)
	report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Limit: 5})
	require.NoError(t, err)
	assert.Equal(t, 5, report.Done)
	assert.Zero(t, report.Dropped)
	f.Has(f.main, 5)
	f.Has(f.queue.Name(), 15)
}

// An import is a stream, which nobody can count before: it stops when the target is full.
func TestTargetThatDrops_Import(t *testing.T) {
	t.Parallel()
	f := connected(t, brokertest.URI(t))
	f.declared(classic(), amqp091.Table{"x-queue-type": "classic", "x-max-length": 5})
	other := onBroker(t, nil)
	other.fill(20)
	file := &bytes.Buffer{}
	_, err := other.queue.Export(t.Context(), file, dlq.ExportOptions{})
	require.NoError(t, err)
	text := file.String()

	report, err := f.queue.Import(t.Context(), strings.NewReader(text), dlq.ImportOptions{DryRun: true})
	require.NoError(t, err)
	assert.Equal(t, 15, report.Target.Excess(report.Matched, report.Bytes))
	imported := 0
	report, err = f.queue.Import(t.Context(), strings.NewReader(text), dlq.ImportOptions{
		Imported: func(lines int) error { imported = lines; return nil }})
	require.ErrorAs(t, err, new(*dlq.DropError))
	assert.Equal(t, 5, report.Done)
	assert.Equal(t, 5, imported)
	f.Has(f.queue.Name(), 5)
	report, err = f.queue.Import(t.Context(), strings.NewReader(text),
		dlq.ImportOptions{Skip: imported, AllowDrop: true})
	require.NoError(t, err)
	assert.Equal(t, 15, report.Done)
	assert.Equal(t, 15, report.Dropped)
}

// The management API shows limits that policies set. Without it the report tells afterwards.
func TestTargetThatDropsByPolicy_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	const vhost = "dropping"
	broker.API(http.MethodPut, struct{}{}, "vhosts", vhost)
	broker.API(http.MethodPut, map[string]string{"configure": ".*", "write": ".*", "read": ".*"}, "permissions", vhost,
		"guest")
	broker.API(http.MethodPut, map[string]any{"pattern": `^dlq-[^.]*$`, "apply-to": "queues",
		"definition": map[string]int{"max-length": 5}}, "policies", vhost, "limit")
	for name, arguments := range map[string]amqp091.Table{"classic": classic(), "quorum": {"x-queue-type": "quorum"}} {
		t.Run(name, func(t *testing.T) {
			f := connected(t, broker.URI+vhost).declared(arguments, nil)
			f.fill(20)
			client, err := dlq.Open(t.Context(), dlq.Config{URI: f.URI,
				Management: management.API{URL: broker.ManagementURL}})
			require.NoError(t, err)
			t.Cleanup(func() { _ = client.Close() })
			await.Until(t, func() bool { // the API tells of a policy some seconds after it applies
				var q struct {
					Effective any `json:"effective_policy_definition"`
				}
				text := broker.API(http.MethodGet, nil, "queues", vhost, f.main)
				return json.Unmarshal([]byte(text), &q) == nil && strings.Contains(text, `"max-length":5`)
			})

			var drops *dlq.DropError
			_, err = client.Queue(f.main).Run(t.Context(), dlq.Plan{Kind: dlq.Replay})
			require.ErrorAs(t, err, &drops)
			assert.Equal(t, 15, drops.Dropped)
			f.Has(f.queue.Name(), 20)

			report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay})
			require.NoError(t, err)
			assert.Contains(t, report.Target.Unknown, "management API")
			assert.Equal(t, 20, report.Done)
			assert.Equal(t, 15, report.Dropped)
		})
	}
}

// A dead-letter queue of several main queues: each message belongs to the queue in which it failed.
func TestReplayLeavesDeadLettersOfAnotherQueue(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	another := f.main + ".other"
	for _, queue := range []string{f.main + ".a", another} {
		f.Declare(queue, amqp091.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": f.queue.Name()})
		f.Publish(queue, rabbit.Message(queue, `{}`))
		f.Do(func(channel *amqp091.Channel) error {
			d, _, err := channel.Get(queue, false)
			require.NoError(t, err)
			return d.Reject(false)
		})
		f.Has(queue, 0)
	}
	f.Has(f.queue.Name(), 2)
	queue := f.client.DeadLetterQueue(f.queue.Name(), f.main+".a")
	var owners []string
	for l, err := range queue.Browse(t.Context(), dlq.Filter{}) {
		require.NoError(t, err)
		owners = append(owners, l.Queue+" "+string(l.Reason))
	}
	assert.ElementsMatch(t, []string{f.main + ".a rejected", another + " rejected"}, owners)

	report, err := queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay})
	require.NoError(t, err)
	assert.Equal(t, 1, report.Done)
	assert.Equal(t, []dlq.Left{{Why: dlq.LeftForeign, Messages: 1}}, report.Left)
	f.Has(f.main+".a", 1)

	// A move keeps whose it is.
	_, err = queue.Run(t.Context(), dlq.Plan{Kind: dlq.Move, To: f.main})
	require.NoError(t, err)
	report, err = f.client.DeadLetterQueue(f.main, another).Run(t.Context(), dlq.Plan{Kind: dlq.Replay})
	require.NoError(t, err)
	assert.Equal(t, 1, report.Done)
	f.Has(another, 1)
}

// Messages that expire are dropped also by a queue that would reject the rest.
func TestTargetThatDrops_Expires(t *testing.T) {
	t.Parallel()
	limit, ttl := int64(5), int64(1000)
	target := &dlq.Target{Queue: "orders", Type: "classic", MaxLength: &limit, Overflow: "reject-publish",
		MessageTTL: &ttl}
	const drops = "orders would drop 20 of 20 messages (max-length 5, overflow reject-publish, message TTL 1s)"
	assert.Equal(t, []string{drops}, target.Warnings(20, 200))
	require.ErrorContains(t, target.Check(20, 200), drops)
	target.Consumers = 1
	assert.Contains(t, target.Warnings(20, 200)[0], "orders would reject 15 of 20 messages")
	require.NoError(t, target.Check(20, 200))
}
