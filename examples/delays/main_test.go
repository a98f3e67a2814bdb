package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

const output = `doomed: attempt 1, try 1, after no wait
doomed: attempt 1, try 2, after no wait
doomed: attempt 2, try 1, after 400ms
doomed: attempt 3, try 1, after 800ms
doomed: attempt 4, try 1, after 1.6s
doomed: dead-letter queue, exhausted, calls: 5
polite: attempt 1, try 1, after no wait
polite: attempt 2, try 1, after 800ms
patient: attempt 1, try 1, after no wait
patient: attempt 1, try 1, after 400ms
patient: attempt 1, try 1, after 400ms
`

func TestOutput(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	require.Equal(t, output, out.String())
}
