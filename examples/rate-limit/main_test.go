package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

const output = `mail-1: sent, attempt 1
mail-2: postponed until its turn
mail-3: postponed until its turn
mail-2: sent, attempt 1
mail-3: sent, attempt 1
`

func TestOutput(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	require.Equal(t, output, out.String())
}
