package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

// The order of the lines is what the example shows.
func TestOutput(t *testing.T) {
	t.Parallel()

	var out exampletest.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	assert.Equal(t, `before
order-1: call 1, failed
order-1: call 2, failed
order-1: shipped, as number 1
order-2: shipped, as number 2
after
order-1: call 1, failed
order-2: shipped, as number 1
order-1: call 2, failed
order-1: shipped, as number 2
`, out.String())
}

func TestPolicyOf(t *testing.T) {
	policy := policyOf(settings)
	require.NoError(t, policy.Validate())
	assert.Equal(t, []time.Duration{300 * time.Millisecond, 600 * time.Millisecond}, policy.Schedule())
}
