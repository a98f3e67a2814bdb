package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `order-1: permanent after 1 calls of "ship": no order: invalid character 'o' in literal null (expecting 'u')
order-1:   call 1: no order: invalid character 'o' in literal null (expecting 'u')
order-2: exhausted after 2 calls of "ship": the warehouse does not answer
order-2:   call 1: the warehouse does not answer
order-2:   call 2: the warehouse does not answer
`)
}
