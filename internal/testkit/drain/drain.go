// Package drain takes messages out of queues as a consumer does, for tests with many of them. A
// basic.get waits for the queue each time, which takes a quorum queue milliseconds on a busy
// machine.
package drain

import (
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// N takes exactly n messages out of a queue, in their order, and waits until they have come. The
// others stay.
func N(t testing.TB, client *rabbit.Client, queue string, n int) []amqp091.Delivery {
	t.Helper()
	await.Until(t, func() bool { return client.Depth(queue) >= n }, "%d messages in queue %s", n, queue)
	taken := make([]amqp091.Delivery, 0, n)
	if n == 0 {
		return taken
	}
	client.Do(func(channel *amqp091.Channel) error {
		if err := channel.Qos(n, 0, false); err != nil { // the consumer gets no more than that
			return err
		}
		const tag = "drain"
		deliveries, err := channel.Consume(queue, tag, false, false, false, false, nil)
		if err != nil {
			return err
		}
		for len(taken) < n {
			d := await.Value(t, deliveries, "a message of queue "+queue)
			require.NotNil(t, d.Acknowledger, "the consumer of queue %s has ended", queue)
			taken = append(taken, d)
		}
		if err := channel.Cancel(tag, false); err != nil { // else it gets others for those that it acknowledges
			return err
		}

		return channel.Ack(taken[n-1].DeliveryTag, true)
	})

	return taken
}

// All takes everything out of a queue, in its order: what the queue counts by [N], and what it may
// not have counted yet by [rabbit.Client.Drain].
func All(t testing.TB, client *rabbit.Client, queue string) []amqp091.Delivery {
	t.Helper()
	client.Idle(queue)

	return append(N(t, client, queue, max(0, client.Depth(queue))), client.Drain(queue)...)
}
