package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

const output = `retry.100ms
retry.300ms
orders.dlq
retry.100ms
retry.300ms
payments.dlq
orders: an order: attempt 1
orders: an order: attempt 2
orders: an order: attempt 3
payments: a payment: attempt 1
payments: a payment: attempt 2
payments: a payment: attempt 3
`

func TestOutput(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	require.Equal(t, output, out.String())
}
