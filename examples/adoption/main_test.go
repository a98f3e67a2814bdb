package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `off: an old order failed once; attempt 0, counted: false
retries: a new order failed once; attempt 2, counted: true
off again: a last order failed once; attempt 0, counted: false
policy for ^orders\.eu$: {"dead-letter-exchange":"","dead-letter-routing-key":"orders.eu.dlq","dead-letter-strategy":"at-least-once","delivery-limit":1000,"overflow":"reject-publish"}
definitions: 2 exchanges, 14 queues, 12 bindings
`)
}
