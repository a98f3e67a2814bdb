package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `order-1: packing
order-1: packed
order-2: packing
SIGTERM: closing
order-2: packed
closed: 1 order is left for the next pod
`)
}
