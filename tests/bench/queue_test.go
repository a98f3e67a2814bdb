package bench

import (
	"maps"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// queueTypes are those of the main queues that are measured.
var queueTypes = []string{"classic", "quorum"}

func arguments(queueType string) amqp091.Table { return amqp091.Table{"x-queue-type": queueType} }

// newQueue declares a queue of its own for a contender's run, removed after the benchmark with what
// the retrier declares beside it.
func newQueue(b *testing.B, queueType string, policy config.Policy) string {
	b.Helper()
	name := "bench-" + watermill.NewShortUUID()
	plan := planOf(b, name, policy.WithDefaults())
	client := newClient(b)
	client.Declare(name, plan.WithMainArguments(arguments(queueType)))
	b.Cleanup(func() { client.RemovePlan(plan) })

	return name
}

func planOf(b *testing.B, queue string, policy config.Policy) topology.Plan {
	b.Helper()
	plan, err := topology.New(queue, policy, topology.Names{})
	require.NoError(b, err)

	return plan
}

func newClient(b *testing.B) *rabbit.Client { b.Helper(); return rabbit.New(b, brokertest.URI(b)) }

// dial opens a connection that the caller closes.
func dial(b *testing.B) *amqp091.Connection { b.Helper(); return newClient(b).Dial() }

// fill publishes messages to a queue as watermill-amqp would, and waits for the broker's confirms.
// header tells what further headers the i-th has; optional.
func fill(b *testing.B, queue string, messages int, header func(i int) amqp091.Table) {
	b.Helper()
	all := make([]amqp091.Publishing, messages)
	for i := range all {
		all[i] = rabbit.Message(watermill.NewUUID(), "")
		all[i].Body, all[i].Headers["kind"] = payload, "order"
		if header != nil {
			maps.Copy(all[i].Headers, header(i))
		}
	}
	newClient(b).Publish(queue, all...)
}

// payload is what a message carries: a few fields.
var payload = []byte(`{"order":"7e1c7e9b-4a34-4d2e-9f0e-6f4fd0f2a9f1","customer":4711,"items":[{"sku":"a-1","quantity":2},{"sku":"b-7","quantity":1}]}`)
