package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `customer: billing: no such customer: dead letter, permanent
new-customer: billing: no such customer: try again
new-customer: billing: no such customer: dead letter, exhausted
template: open invoice.tmpl: file does not exist: dead letter, permanent
duplicate: was billed before: dropped
forged: the signature is wrong: dead letter, permanent
payment: the bank does not answer: try again
payment: the bank does not answer: dead letter, exhausted
`)
}
