package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

const output = `price: attempt 1, time for another one: true
price: attempt 2, time for another one: true
price: attempt 3, time for another one: true
price: attempt 4, time for another one: false
price: dead-letter queue, expired, calls: 4
`

func TestOutput(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	require.Equal(t, output, out.String())
}
