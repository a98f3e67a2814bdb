package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `orders: uses the queue retry.100ms
orders: uses the queue retry.300ms
orders: uses the queue orders.dlq
payments: uses the queue retry.100ms
payments: uses the queue retry.300ms
payments: uses the queue payments.dlq
an order: attempt 1, in the handler of orders
an order: attempt 2, in the handler of orders
an order: attempt 3, in the handler of orders
a payment: attempt 1, in the handler of payments
a payment: attempt 2, in the handler of payments
a payment: attempt 3, in the handler of payments
`)
}
