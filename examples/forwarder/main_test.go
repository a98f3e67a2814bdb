package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `order-1: not forwarded
order-1: forwarded to orders
order-2: not forwarded
order-2: not forwarded
an envelope: dead letter, exhausted: cannot publish a message: the other broker does not answer
`)
}
