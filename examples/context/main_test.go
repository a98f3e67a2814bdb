package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `pay: attempt 1 of 3, last: false
log: retry 1 after 100ms: pay with [card]
pay: attempt 2 of 3, last: false
pay:   call 1: [card] was refused
log: retry 2 after 100ms: pay with [card]
pay: attempt 3 of 3, last: true
pay:   call 1: [card] was refused
pay:   call 2: handler panicked: no connection for [card]
pay with 4000123412341234: dead letter, exhausted, calls: 3
`)
}
