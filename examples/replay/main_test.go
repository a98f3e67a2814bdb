package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

const output = `order-1: exhausted, the warehouse does not answer
order-2: permanent, no such customer
order-3: exhausted, the warehouse does not answer
2 of 3 are exhausted
2 of 2 replayed, 2 in the undo file
shipped order-1: attempt 1 after 2 calls in its last life
shipped order-3, by express: attempt 1 after 2 calls in its last life
`

func TestOutput(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	require.Equal(t, output, out.String())
}
