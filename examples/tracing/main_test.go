package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

const output = `one trace:
  publish order-1
    ship order-1, attempt 1: the warehouse does not answer
    wait 100ms
    ship order-1, attempt 2
one trace:
  publish order-2
    ship order-2, attempt 1: the warehouse does not answer
    wait 100ms
    ship order-2, attempt 2: the warehouse does not answer
    wait 200ms
    ship order-2, attempt 3: the warehouse does not answer
    dead-lettered (exhausted)
    file order-2
`

func TestOutput(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	require.Equal(t, output, out.String())
}
