package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

const output = `attempt 1 of 3, last: false
log: retry 1 after 100ms: pay with [card]
attempt 2 of 3, last: false
  call 1: [card] was refused
log: retry 2 after 100ms: pay with [card]
attempt 3 of 3, last: true
  call 1: [card] was refused
  call 2: handler panicked: no connection for [card]
pay with 4000123412341234: dead-letter queue, exhausted, calls: 3
`

func TestOutput(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	require.Equal(t, output, out.String())
}
