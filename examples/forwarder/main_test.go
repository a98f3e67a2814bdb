package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `order-1: shipped
an envelope: no queue gets its message, try again
an envelope: dead letter, exhausted: `+
		`cannot publish a message: cannot publish 1 of 1 messages to topic "invoices": message "invoice-1" (not stored): `+
		`no queue gets it: the queue "invoices" does not exist; `+
		`subscribe to the topic once, or call SubscribeInitialize, before you publish
`)
}
