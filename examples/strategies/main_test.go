package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	native := `native: attempt 1 of 3, fresh, errors known: 0
native: failed, the broker brings it back
native: attempt 2 of 3, after 1s, errors known: 0
native: failed, the broker brings it back
native: attempt 3 of 3, after 1s, errors known: 0
native: dead letter, exhausted after 3 calls: the warehouse is closed (3)
`
	if !rabbit.New(t, brokertest.URI(t)).AtLeast(4, 3) {
		native = "native: not on this broker, it needs RabbitMQ 4.3 or later\n"
	}
	exampletest.Output(t, run, `queues: attempt 1 of 3, fresh, errors known: 0
queues: failed, a copy waits for 1s
queues: attempt 2 of 3, after 1s, errors known: 1
queues: failed, a copy waits for 1s
queues: attempt 3 of 3, after 1s, errors known: 2
queues: dead letter, exhausted after 3 calls: the warehouse is closed (3)
cycle: attempt 1 of 3, fresh, errors known: 0
cycle: failed, the broker brings it back
cycle: attempt 2 of 3, after 1s, errors known: 0
cycle: failed, the broker brings it back
cycle: attempt 3 of 3, after 1s, errors known: 0
cycle: dead letter, exhausted after 3 calls: the warehouse is closed (3)
redelivery: attempt 1 of 3, fresh, errors known: 0
redelivery: failed, the broker brings it back
redelivery: attempt 2 of 3, at once, errors known: 0
redelivery: failed, the broker brings it back
redelivery: attempt 3 of 3, at once, errors known: 0
redelivery: dead letter, exhausted after 3 calls: the warehouse is closed (3)
`+native)
}
