package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

const output = `customer: attempt 1
customer: dead-letter queue, permanent, calls: 1
new-customer: attempt 1
new-customer: attempt 2
new-customer: dead-letter queue, exhausted, calls: 2
template: attempt 1
template: dead-letter queue, permanent, calls: 1
duplicate: attempt 1
forged: attempt 1
forged: dead-letter queue, permanent, calls: 1
payment: attempt 1
payment: attempt 2
payment: dead-letter queue, exhausted, calls: 2
`

func TestOutput(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	require.Equal(t, output, out.String())
}
