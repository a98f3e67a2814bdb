package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

const output = `off: an old order failed once; attempt 0, counted: false
retries: a new order failed once; attempt 2, counted: true
off again: a last order failed once; attempt 0, counted: false
policy for ^orders\.eu$: {"dead-letter-exchange":"","dead-letter-routing-key":"orders.eu.dlq","dead-letter-strategy":"at-least-once","delivery-limit":1000,"overflow":"reject-publish"}
definitions: 2 exchanges, 14 queues, 12 bindings
`

func TestOutput(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	require.Equal(t, output, out.String())
}
