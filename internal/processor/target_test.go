package processor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
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
	for _, text := range []string{"", "*", "failed", "*.failed.*", "**"} {
		_, err := parsePattern(text)
		assert.Error(t, err, text)
	}
}

// Each failed queue has one main queue, and none is one from which the processor would read what it has written.
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
	patterns := []pattern{{"", ".failed"}, {"", ".dlq"}, {"x.", ""}}
	targets := resolve([]Pair{{"special", "orders"}, {"mails.failed", "post"}, {"b", "b"}}, patterns, []string{
		"orders.failed", "orders", "mails.failed", "off.failed", "native.failed", "orders.dlq", "deadly.failed",
		"orders.retry.1s.failed", "unrelated", "x.y.failed",
	}, policies, topology.Names{})

	mains, errs := map[string]string{}, map[string]string{}
	for name, target := range targets {
		mains[name] = target.Main
		if target.err != nil {
			errs[name] = target.err.Error()
		} else {
			assert.Equal(t, target.Main, target.plan.Queue)
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

// Everything that is wrong is reported at once.
func TestValidate(t *testing.T) {
	t.Parallel()
	_, err := New(Config{URI: "amqp:/host", Addresses: []string{"a:b:c"}, Match: []string{"*", "x"}},
		Options{Prefetch: 70000, PollInterval: -1, CloseTimeout: -1, HoldWarning: -1, Topology: "maybe",
			Policies: config.Policies{Default: config.Policy{Retries: -1}}})
	require.Error(t, err)
	for _, part := range []string{
		"Config.URI", "Config.Addresses[0]", "Config.Match[0]", "Config.Match[1]", "Config.Management.URL",
		"Options.Prefetch", "Options.PollInterval", "Options.CloseTimeout", "Options.HoldWarning", "Options.Topology",
		"Options.Policies.Default.Retries",
	} {
		assert.ErrorContains(t, err, part)
	}
	_, err = New(Config{URI: "amqp://host"}, Options{})
	require.ErrorContains(t, err, "Config.Queues: missing")
	_, err = New(Config{URI: "amqp://host", Queues: []Pair{{"", "a"}, {"f", "a"}, {"f", "b"}}}, Options{})
	require.ErrorContains(t, err, "Config.Queues[0]")
	require.ErrorContains(t, err, "two main queues")
}
