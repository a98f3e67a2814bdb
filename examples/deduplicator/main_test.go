package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `order-1: attempt 1, failed
order-1: attempt 2, billed
order-1: acknowledged
order-2: attempt 1, billed
order-2: acknowledged
order-2 again: acknowledged
`)
}
