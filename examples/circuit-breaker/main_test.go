package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

const (
	whileItIsDown = `order-1: attempt 1, failed
order-2: attempt 1, failed
the breaker was closed and is open
order-3: not tried, postponed
order-4: not tried, postponed
the breaker was open and is half-open
`
	// In any order: what was sent to wait at about the same time.
	whenItIsBack = `order-1: attempt 2, shipped
the breaker was half-open and is closed
order-2: attempt 2, shipped
order-3: attempt 1, shipped
order-4: attempt 1, shipped
`
)

func TestOutput(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	back, found := strings.CutPrefix(out.String(), whileItIsDown)
	require.True(t, found, out.String())
	require.ElementsMatch(t, strings.Split(whenItIsBack, "\n"), strings.Split(back, "\n"))
}
