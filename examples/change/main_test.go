package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/examples/internal/check"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	check.Output(t, run, `old version: attempt 1
new version: attempt 2
new version: attempt 3
obsolete: orders.retry.2s
obsolete: orders.retry.10s
`)
}
