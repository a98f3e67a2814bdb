package drain_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

func TestDrain(t *testing.T) {
	t.Parallel()
	for _, queueType := range []string{amqp091.QueueTypeQuorum, amqp091.QueueTypeClassic} {
		t.Run(queueType, func(t *testing.T) {
			t.Parallel()
			client, queue := rabbit.New(t, brokertest.URI(t)), "drain-"+watermill.NewShortUUID()
			client.Declare(queue, amqp091.Table{amqp091.QueueTypeArg: queueType})
			uuids := rabbit.Numbered("message", 50)
			client.Publish(queue, rabbit.Messages(uuids...)...)

			assert.Empty(t, drain.N(t, client, queue, 0))
			assert.Equal(t, uuids[:20], rabbit.Bodies(drain.N(t, client, queue, 20)))
			client.Has(queue, 30)
			assert.Equal(t, uuids[20:], rabbit.Bodies(drain.All(t, client, queue)))
			client.Has(queue, 0)
			assert.Empty(t, drain.All(t, client, queue))
		})
	}
}
