package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

const output = `one trace:
  1 send order-1
  2   process order-1 by handler ship, attempt 1: the warehouse does not answer
  3   wait order-1 0.1 s, after 2
  4   process order-1 by handler ship, attempt 2, after 2
one trace:
  1 send order-2
  2   process order-2 by handler ship, attempt 1: the warehouse does not answer
  3   wait order-2 0.1 s, after 2
  4   process order-2 by handler ship, attempt 2, after 2: the warehouse does not answer
  5   wait order-2 0.2 s, after 4
  6   process order-2 by handler ship, attempt 3, after 4: the warehouse does not answer
  7   dead-letter order-2 (exhausted), after 6
  8   process order-2 by handler file, after 6
`

func TestOutput(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	require.Equal(t, output, out.String())
}
