package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `order-1: attempt 1, 429 Too Many Requests
order-1: waits 2s
order-1: attempt 2, charged
burst: 60 retries, some in each 200ms from 200ms to 1s
`)
}
