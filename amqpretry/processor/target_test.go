package processor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

func TestPattern(t *testing.T) {
	t.Parallel()
	for text, names := range map[string]map[string]string{
		"*.failed": {"orders.failed": "orders", "a.b.failed": "a.b", ".failed": "", "orders.failed.x": "",
			"failed": ""},
		"failed.*":   {"failed.orders": "orders", "failed.": "", "orders": ""},
		"dead-*-end": {"dead-orders-end": "orders", "dead-end": "", "dead--end": "", "dead-a": ""},
	} {
		p, err := parsePattern(text)
		require.NoError(t, err)
		for name, want := range names {
			main, matches := p.main(name)
			assert.Equal(t, want != "", matches, name)
			if matches {
				assert.Equal(t, want, main)
			}
		}
	}
	for _, text := range []string{"", "*", "failed", "*.failed.*", "**", "failed=", "failed=*", "=a*", "failed=a",
		"failed=*a*"} {
		_, err := parsePattern(text)
		assert.Error(t, err, text)
	}
}

func queuesOf(names ...string) (queues []httpapi.Queue) {
	for _, name := range names {
		queues = append(queues, httpapi.Queue{Name: name})
	}

	return queues
}

// Each failed queue has one main queue, and none is one from which the processor would read what it
// has written.
func TestResolve(t *testing.T) {
	t.Parallel()
	policies := config.Policies{
		Default: config.Policy{Delays: []time.Duration{time.Second}},
		Topics: map[string]config.Policy{
			"off":    {Mode: config.ModeOff},
			"native": {Strategy: config.StrategyRedelivery},
			"deadly": {Mode: config.ModeDeadLetter},
		},
	}
	patterns := []pattern{{"", ".failed", ""}, {"", ".dlq", ""}, {"x.", "", ""}}
	targets := resolve([]Queue{{"special", "orders"}, {"mails.failed", "post"}, {"b", "b"}}, patterns, queuesOf(
		"orders.failed", "orders", "mails.failed", "off.failed", "native.failed", "orders.dlq", "deadly.failed",
		"orders.retry.1s.failed", "unrelated", "x.y.failed",
	), policies, topology.Names{})

	mains, errs := map[string]string{}, map[string]string{}
	for name, target := range targets {
		mains[name] = target.mains[0].name
		if target.err != nil {
			errs[name] = target.err.Error()
		} else {
			assert.Equal(t, mains[name], target.mains[0].plan.Queue)
		}
	}
	assert.Equal(t, map[string]string{
		"special": "orders", "mails.failed": "post", "b": "b", "orders.failed": "orders", "native.failed": "native",
		"orders.dlq": "orders", "deadly.failed": "deadly", "orders.retry.1s.failed": "orders.retry.1s",
		"x.y.failed": "x.y",
	}, mains)
	assert.Contains(t, errs["b"], "its own failed queue")
	assert.Contains(t, errs["native.failed"], "strategy redelivery")
	assert.Contains(t, errs["orders.dlq"], `the dead-letter queue of "orders"`)
	assert.Contains(t, errs["orders.retry.1s.failed"],
		`its main queue is a retry queue or the dead-letter queue of "orders"`)
	assert.NotContains(t, errs, "orders.failed")
	assert.NotContains(t, errs, "mails.failed")
	assert.NotContains(t, errs, "deadly.failed")
}

// A failed queue has any number of main queues, each with its policy. One that cannot be processed
// stops all: none of its messages could be left alone.
func TestResolve_SharedFailedQueue(t *testing.T) {
	t.Parallel()
	pairs := []Queue{{"failed", "orders"}, {"failed", "bills"}, {"failed", "orders"}, {"x", "orders"}}
	of := func(pairs []Queue, topics map[string]config.Policy) map[string]target {
		return resolve(pairs, []pattern{{"", "failed", ""}}, queuesOf("failed"), config.Policies{
			Default: config.Policy{Delays: []time.Duration{time.Second}}, Topics: topics}, topology.Names{})
	}
	before := of(pairs, nil)["failed"]
	require.NoError(t, before.err)
	require.Len(t, before.mains, 2)
	assert.Equal(t, []string{"bills", "orders"}, []string{before.mains[0].name, before.mains[1].name})
	assert.Equal(t, "orders", before.main("orders").plan.Queue)
	assert.True(t, before.listed)

	bills := map[string]config.Policy{"bills": {Delays: []time.Duration{time.Minute}}}
	after := of(pairs, bills)
	assert.False(t, before.sameAs(after["failed"]), "a policy of one of them has changed")
	assert.True(t, of(pairs, nil)["x"].sameAs(after["x"]))
	assert.True(t, before.sameAs(of(pairs[:2], map[string]config.Policy{"other": {MaxAge: time.Hour}})["failed"]))
	assert.False(t, before.sameAs(of(pairs[:1], nil)["failed"]), "one fewer")

	off := of(pairs, map[string]config.Policy{"bills": {Mode: config.ModeOff}})["failed"]
	require.ErrorContains(t, off.err, `"bills" has mode off`)
	require.NoError(t, off.main("orders").err)
	require.ErrorContains(t, of([]Queue{{"bills.dlq", "orders"}, {"bills.dlq", "bills"}}, nil)["bills.dlq"].err,
		`the dead-letter queue of "bills"`)
}

// A pattern of main queues finds these, and no queue that belongs to one of them.
func TestResolve_PatternOfMainQueues(t *testing.T) {
	t.Parallel()
	policies := config.Policies{Default: config.Policy{Delays: []time.Duration{time.Second}}}
	of := func(listed []Queue, policies config.Policies, patterns ...string) map[string]target {
		parsed := []pattern{}
		for _, text := range patterns {
			p, err := parsePattern(text)
			require.NoError(t, err)
			parsed = append(parsed, p)
		}
		queues := queuesOf("orders-a.retry.1s", "orders-a.dlq", "orders-a", "orders-b.failed", "orders-b", "orders-",
			"orders-failed", "mails", "orders-x.failed")
		dead := func(name, exchange, key string) httpapi.Queue {
			return httpapi.Queue{Name: name, Arguments: httpapi.Arguments{
				"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": key}}
		}
		queues = append(queues, dead("orders-a.retry.30s", "", "orders-a"), dead("orders-c", "", "orders-failed"),
			dead("orders-d", "dlx", "orders-d"), dead("orders-e", "", "other.failed"))
		return resolve(listed, parsed, queues, policies, topology.Names{})
	}
	names := func(t target) (names []string) {
		for _, m := range t.mains {
			names = append(names, m.name)
		}
		return names
	}
	targets := of([]Queue{{"orders-failed", "mails"}, {"orders-x.failed", "x"}}, policies,
		"*.failed", "orders-failed=orders-*", "*-failed")
	require.Len(t, targets, 3)
	shared := targets["orders-failed"]
	require.NoError(t, shared.err)
	assert.True(t, shared.listed)
	assert.Equal(t, []string{"mails", "orders-a", "orders-b", "orders-c", "orders-d"}, names(shared))
	assert.Equal(t, []string{"orders-b"}, names(targets["orders-b.failed"]))
	assert.Equal(t, []string{"x"}, names(targets["orders-x.failed"]))

	found := of(nil, policies, "*.failed", "orders-failed=orders-*")
	assert.Equal(t, []string{"orders-a", "orders-b", "orders-c", "orders-d"}, names(found["orders-failed"]))
	assert.False(t, found["orders-failed"].listed)

	policies.Topics = map[string]config.Policy{"orders-b": {Mode: config.ModeOff}}
	assert.ErrorContains(t, of(nil, policies, "*.failed", "orders-failed=orders-*")["orders-failed"].err, "mode off")
}

// Everything that is wrong is reported at once.
// A main queue is refused if its names are those of another one's retry topology. The others go on.
func TestResolve_Collisions(t *testing.T) {
	t.Parallel()
	policies := config.Policies{Default: config.Policy{Delays: []time.Duration{time.Second}}}
	names := topology.Names{DeadLetterQueue: func(queue string) string {
		if queue == "b" || queue == "c" {
			return "dead"
		}
		return queue + ".dead"
	}}
	targets := resolve([]Queue{{"a.failed", "a"}, {"b.failed", "b"}, {"c.failed", "c"}}, nil, nil, policies, names)
	require.NoError(t, targets["a.failed"].err)
	require.NoError(t, targets["b.failed"].err)
	require.ErrorContains(t, targets["c.failed"].err, `"dead": belongs to the topology of queue "b"`)
	assert.ErrorAs(t, targets["c.failed"].err, new(*topology.NameError))
}

func TestValidate(t *testing.T) {
	t.Parallel()
	_, err := New(Config{URI: "amqp:/host", Addresses: []string{"a:b:c"}, Match: []string{"*", "x"}},
		Options{Prefetch: 70000, PollInterval: -1, CloseTimeout: -1, HoldWarning: -1,
			Policies: config.Policies{Default: config.Policy{Retries: -1}}})
	require.Error(t, err)
	for _, part := range []string{
		"Config.URI", "Config.Addresses[0]", "Config.Match[0]", "Config.Match[1]", "Config.Management.URL",
		"Options.Prefetch", "Options.PollInterval", "Options.CloseTimeout", "Options.HoldWarning",
		"Options.Policies.Default.Retries",
	} {
		assert.ErrorContains(t, err, part)
	}
	_, err = New(Config{URI: "amqp://host"}, Options{})
	require.ErrorContains(t, err, "Config.Queues: missing")
	_, err = New(Config{URI: "amqp://host", Queues: []Queue{{"", "a"}, {"f", "a"}, {"f", "f"}, {"f", "b"}, {"f", ""},
		{"f", "amq.x"}}}, Options{})
	require.ErrorContains(t, err, "Config.Queues[0]: has an empty name")
	require.ErrorContains(t, err, `Config.Queues[2]: cannot process failed queue "f": a queue cannot be its own`)
	require.ErrorContains(t, err, "Config.Queues[4]: has an empty name")
	require.ErrorContains(t, err, "Config.Queues[5]")
	for _, i := range []string{"[1]", "[3]"} {
		assert.NotContains(t, err.Error(), "Config.Queues"+i, "nothing is wrong with it")
	}
}
