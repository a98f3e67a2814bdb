package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `order-1: before: failed and poisoned
order-1: after: attempt 1, failed
order-1: after: attempt 2, shipped
order-2: after: attempt 1, failed
order-2: after: attempt 2, shipped
`)
}
