package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `old version: attempt 1
new version: attempt 2
new version: attempt 3
obsolete: orders.retry.2s
obsolete: orders.retry.10s
`)
}
