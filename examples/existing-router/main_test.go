package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

func TestExistingRouter(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	require.Equal(t, "call 1: the bank is closed\ncall 2: 42 EUR\n", out.String())
}
