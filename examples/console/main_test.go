package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `eve: You are not signed in
bob sees order-1: exhausted ""
bob sees order-2: permanent ""
bob sees order-3: exhausted ""
ann sees order-1: exhausted "the warehouse does not answer"
ann sees order-2: permanent "no such customer"
ann sees order-3: exhausted "the warehouse does not answer"
2 of 3 match
2 replayed
audit: ann, plan of a replay of error warehouse
audit: ann, confirm of a replay of error warehouse
`)
}
