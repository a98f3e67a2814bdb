package main

import (
	"context"
	"io"
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func play(ctx context.Context, uri string, out io.Writer) error {
	return run(ctx, uri, "retry.yaml", out)
}

func TestOutput(t *testing.T) {
	exampletest.Output(t, play, `orders.eu: [100ms 200ms]
mails.eu: [100ms]
orders.audit: [100ms 200ms]
order: attempt 1
order: attempt 2
order: attempt 3
order: dead letter, exhausted, calls: 3
template: attempt 1
template: dead letter, permanent, calls: 1
mail: attempt 1
mail: attempt 2
mail: dead letter, exhausted, calls: 2
audit: attempt 1
audit: dead letter, exhausted, calls: 1
`)
}
