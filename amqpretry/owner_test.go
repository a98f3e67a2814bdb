package amqpretry_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/versions/amqpretry"
	"github.com/amqpretry/watermill-retry/middleware"
)

// A plug is the owner of its messages: a middleware that is made by hand for one handler serves them.
func TestPlugIsTheOwnerOfItsMessages(t *testing.T) {
	t.Parallel()

	plug, err := amqpretry.New(durable(), amqpretry.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plug.Close()) })
	subscriber := delivered{plug.Config(), make(chan amqp091.Delivery, 1)}
	byHand := middleware.Retry{Poison: middleware.Poison{
		Owner: plug, Decide: func(f middleware.Failure) error { return middleware.Drop(f.Err) },
	}}
	runRouter(t, func(router *message.Router) {
		router.AddMiddleware(plug.Middleware)
		router.AddConsumerHandler("ship", "orders", subscriber, func(*message.Message) error { return errors.New("boom") }).
			AddMiddleware(byHand.Middleware)
	})

	answered := make(answers, 1)
	subscriber.deliveries <- amqp091.Delivery{Acknowledger: answered, Body: []byte("x")}
	assert.Equal(t, "ack", answered.await(t), "dropped, with no broker to copy it to")
}
