package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/examples/internal/check"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	check.Output(t, run, `mail-1: sent, attempt 1
mail-2: postponed
mail-2: sent, attempt 1
mail-3: postponed
mail-3: sent, attempt 1
`)
}
