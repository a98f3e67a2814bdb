package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

const output = `order-1: permanent after 1 calls of "ship": no order: invalid character 'o' in literal null (expecting 'u')
  call 1: no order: invalid character 'o' in literal null (expecting 'u')
order-2: exhausted after 2 calls of "ship": the warehouse does not answer
  call 1: the warehouse does not answer
  call 2: the warehouse does not answer
`

func TestOutput(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	require.Equal(t, output, out.String())
}
