package bench

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// queueTypes are those of the main queues that are measured.
var queueTypes = []string{"classic", "quorum"}

// newQueue declares a queue of its own for a contender's run, removed after the benchmark with what the retrier
// declares beside it.
func newQueue(b *testing.B, queueType string, policy config.Policy) string {
	b.Helper()
	name := "bench-" + watermill.NewShortUUID()
	plan, err := topology.New(name, policy.WithDefaults(), topology.Names{})
	require.NoError(b, err)

	connection := dial(b)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(b, err)
	_, err = channel.QueueDeclare(name, true, false, false, false, arguments(queueType))
	require.NoError(b, err)
	b.Cleanup(func() { remove(b, plan) })

	return name
}

func arguments(queueType string) amqp091.Table { return amqp091.Table{"x-queue-type": queueType} }

// remove removes what a plan has, and its main queue.
func remove(b *testing.B, plan topology.Plan) {
	b.Helper()
	connection := dial(b)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(b, err)

	_, err = channel.QueueDelete(plan.Queue, false, false, false)
	require.NoError(b, err)
	for _, q := range plan.Queues {
		_, err = channel.QueueDelete(q.Name, false, false, false)
		require.NoError(b, err)
	}
	for _, x := range plan.Exchanges {
		require.NoError(b, channel.ExchangeDelete(x.Name, false, false))
	}
}

// fill publishes messages to a queue as watermill-amqp would, and waits for the broker's confirms. header tells what
// further headers the i-th has; optional.
func fill(b *testing.B, queue string, messages int, header func(i int) amqp091.Table) {
	b.Helper()
	connection := dial(b)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(b, err)
	require.NoError(b, channel.Confirm(false))

	confirms := make([]*amqp091.DeferredConfirmation, messages)
	for i := range messages {
		headers := amqp091.Table{amqp.DefaultMessageUUIDHeaderKey: watermill.NewUUID(), "kind": "order"}
		if header != nil {
			for key, value := range header(i) {
				headers[key] = value
			}
		}
		confirms[i], err = channel.PublishWithDeferredConfirmWithContext(b.Context(), "", queue, false, false, amqp091.Publishing{
			Headers: headers, Body: payload, DeliveryMode: amqp091.Persistent,
		})
		require.NoError(b, err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	for _, confirm := range confirms {
		acked, err := confirm.WaitContext(ctx)
		require.NoError(b, err)
		require.True(b, acked)
	}
}

// payload is what a message carries: a few fields.
var payload = []byte(`{"order":"7e1c7e9b-4a34-4d2e-9f0e-6f4fd0f2a9f1","customer":4711,"items":[{"sku":"a-1","quantity":2},{"sku":"b-7","quantity":1}]}`)
