package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `price: attempt 1, time for another one: true
price: attempt 2, time for another one: true
price: attempt 3, time for another one: false
price: dead letter, expired, calls: 3
`)
}
