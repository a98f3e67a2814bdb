package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `order-1: attempt 1, failed
order-1: attempt 2, failed
order-1: attempt 3, shipped
order-2: published, due in 500ms
order-2: attempt 1, failed
order-2: attempt 2, failed
order-2: attempt 3, shipped
`)
}
