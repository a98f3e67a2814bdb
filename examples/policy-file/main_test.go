package main

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

const output = `orders.: [100ms 200ms]
mails.: [100ms]
orders.audit: [100ms 200ms]
order: attempt 1
order: attempt 2
order: attempt 3
order: dead-letter queue, exhausted, calls: 3
template: attempt 1
template: dead-letter queue, permanent, calls: 1
mail: attempt 1
mail: attempt 2
mail: dead-letter queue, exhausted, calls: 2
audit: attempt 1
audit: dead-letter queue, exhausted, calls: 1
`

const overridden = `orders.: [150ms]
mails.: [100ms]
orders.audit: [150ms]
order: attempt 1
order: attempt 2
order: dead-letter queue, exhausted, calls: 2
template: attempt 1
template: dead-letter queue, permanent, calls: 1
mail: attempt 1
mail: attempt 2
mail: dead-letter queue, exhausted, calls: 2
audit: attempt 1
audit: dead-letter queue, exhausted, calls: 1
`

func TestOutput(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out, "retry.yaml"))
	require.Equal(t, output, out.String())
}

func TestOutputWithTheEnvironment(t *testing.T) {
	t.Setenv("AMQPRETRY__TOPICS__ORDERS__DELAYS", "150ms")
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out, "retry.yaml"))
	require.Equal(t, overridden, out.String())

	t.Setenv("AMQPRETRY__TOPICS__ORDER__DELAYS", "150ms")
	require.EqualError(t, run(t.Context(), brokertest.URI(t), io.Discard, "retry.yaml"),
		"AMQPRETRY__TOPICS__ORDER__DELAYS: unknown topic ORDER, did you mean ORDERS?")
}
