package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

const output = `old version: attempt 1
new version: attempt 2
new version: attempt 3
obsolete: orders.retry.2s
obsolete: orders.retry.10s
`

func TestOutput(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	require.Equal(t, output, out.String())
}
