package rabbit_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

func TestClient(t *testing.T) {
	t.Parallel()
	queue := "rabbit-" + watermill.NewShortUUID()
	client := rabbit.New(t, brokertest.URI(t))
	t.Run("declared queues are removed at the end of their test", func(t *testing.T) {
		client := rabbit.New(t, client.URI)
		assert.Equal(t, -1, client.Depth(queue))
		client.Declare(queue, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})
		client.Publish(queue, rabbit.Messages("a", "b", "c")...)
		client.Has(queue, 3)
		assert.Equal(t, 0, client.Consumers(queue))

		taken := client.Take(queue, 1)
		require.Len(t, taken, 1)
		assert.Equal(t, "a", rabbit.UUID(taken[0]))
		assert.Equal(t, amqp091.Persistent, taken[0].DeliveryMode)
		assert.Equal(t, []string{"b", "c"}, rabbit.Bodies(client.Drain(queue)))
		client.Has(queue, 0)
	})
	assert.Equal(t, -1, client.Depth(queue))

	err := client.TryPublish("", queue, rabbit.Message("d", "body"))
	require.ErrorIs(t, err, rabbit.ErrUnroutable)
	var refused *amqp091.Error
	err = client.TryPublish(queue+"-exchange", queue, rabbit.Message("d", "body"))
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, amqp091.NotFound, refused.Code)
	assert.True(t, client.AtLeast(3, 10), client.Version())
	assert.False(t, client.AtLeast(99, 0))
}
