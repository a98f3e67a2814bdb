package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `stock: done with event-1, calls: 1
reports: done with event-1, calls: 1
mails: event-1 is a dead letter, calls: 3
`)
}
