package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `doomed: attempt 1, call 1
doomed: attempt 1, call 2
doomed: waits 400ms
doomed: attempt 2, call 1
doomed: waits 800ms
doomed: attempt 3, call 1
doomed: waits 1.6s
doomed: attempt 4, call 1
doomed: dead letter, exhausted, calls: 5
polite: attempt 1, call 1
polite: waits 800ms
polite: attempt 2, call 1
patient: attempt 1, call 1
patient: waits 400ms
patient: attempt 1, call 1
patient: waits 400ms
patient: attempt 1, call 1
`)
}
