package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `order-1: attempt 1, failed
order-2: attempt 1, failed
the breaker was closed and is open
order-3: postponed
order-4: postponed
the breaker was open and is half-open
order-1: attempt 2, shipped
the breaker was half-open and is closed
order-2: attempt 2, shipped
order-3: attempt 1, shipped
order-4: attempt 1, shipped
`)
}
