package tests

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// Further consumers of a channel have tags of their own, which must not be longer than AMQP allows:
// amqp091-go would close the connection.
func TestConsumerTagOfAnyLength(t *testing.T) {
	t.Parallel()
	svc := start(t, setup{
		QueueType: "quorum",
		Configure: func(c *amqp.Config) { c.Consume.Consumer = strings.Repeat("x", 255) },
		Handler:   succeed,
	})
	svc.publish(rabbit.Numbered("message", 30)...)
	await.Until(t, func() bool { return len(svc.Calls.ids()) == 30 }, "all are handled")
	svc.close()
	assert.Len(t, svc.Events(retry.EventConnected), 1, "the connection is not lost")
}
