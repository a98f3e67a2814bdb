package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `order-1: exhausted, the warehouse does not answer
order-2: permanent, no such customer
order-3: exhausted, the warehouse does not answer
2 of 3 are exhausted
2 of 2 replayed, 2 in the undo file
order-1: shipped "order-1" in attempt 1 after 2 calls in its last life
order-3: shipped "order-3, by express" in attempt 1 after 2 calls in its last life
`)
}
