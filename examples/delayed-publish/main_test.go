package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `order-1: please pay, said too early: false
order-2: no reminder, it is paid
order-3: please pay, said too early: false
mails: order-4 is on its way
stock: order-4 has left
`)
}
