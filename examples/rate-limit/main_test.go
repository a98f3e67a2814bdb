package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `mail-1: sent, attempt 1
mail-2: postponed
mail-2: sent, attempt 1
mail-3: postponed
mail-3: sent, attempt 1
`)
}
