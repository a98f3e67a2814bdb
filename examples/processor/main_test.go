package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `order-1: handled, failures before: <nil>
order-2: rejected, failures before: <nil>
order-2: handled, failures before: 1
order-3: rejected, failures before: <nil>
order-3: rejected, failures before: 1
order-3: rejected, failures before: 2
order-3: dead letter, rejected
`)
}
