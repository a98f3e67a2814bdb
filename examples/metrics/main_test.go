package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// Of 500 messages five fail, one of them for ever: seven failures, six retries, one dead letter.
var output = []string{
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

func TestOutput(t *testing.T) {
	t.Parallel()
	topic := "metrics-" + watermill.NewShortUUID()

	var out bytes.Buffer
	l := load{Listen: "127.0.0.1:0", PerSecond: 500, For: time.Second}
	require.NoError(t, run(t.Context(), brokertest.URI(t), topic, l, &out))

	got := strings.ReplaceAll(out.String(), topic, "orders")
	for _, line := range output {
		assert.Regexp(t, "(?m)^"+regexp.QuoteMeta(line)+"$", got)
	}
	assert.NotContains(t, got, "requeued", "nothing that did not happen")
	assert.NotContains(t, got, "held")
}
