package bench

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// way is one to consume: it adds its middlewares to a router and gives the subscriber, and what is
// to be closed after the router.
type way func(b *testing.B, router *message.Router, conf amqp.Config) (message.Subscriber, func() error)

// stock is watermill-amqp as it is.
func stock(b *testing.B, _ *message.Router, conf amqp.Config) (message.Subscriber, func() error) {
	b.Helper()
	subscriber, err := amqp.NewSubscriber(conf, watermill.NopLogger{})
	require.NoError(b, err)

	return subscriber, subscriber.Close
}

// ownConsumer is the retrier's.
func ownConsumer(options amqpretry.Options) way {
	return func(b *testing.B, router *message.Router, conf amqp.Config) (message.Subscriber, func() error) {
		b.Helper()
		retrier := newRetrier(b, conf, options)
		router.AddMiddleware(retrier.Middleware)
		subscriber, err := retrier.NewSubscriber()
		require.NoError(b, err)

		return subscriber, retrier.Close
	}
}

// ownConfig is watermill-amqp's subscriber with the retrier's config and middleware.
func ownConfig(options amqpretry.Options) way {
	return func(b *testing.B, router *message.Router, conf amqp.Config) (message.Subscriber, func() error) {
		b.Helper()
		retrier := newRetrier(b, conf, options)
		router.AddMiddleware(retrier.Middleware)
		subscriber, _ := stock(b, router, retrier.Config())

		return subscriber, retrier.Close
	}
}

// consume handles the messages of a queue until done is closed, for so long at the most.
func (w way) consume(b *testing.B, conf amqp.Config, queue string, handle message.NoPublishHandlerFunc,
	done <-chan struct{}, within time.Duration) {
	b.Helper()
	router := newRouter(b)
	subscriber, closeRetrier := w(b, router, conf)
	router.AddConsumerHandler("orders", queue, subscriber, handle)
	run(b, router, done, within)
	require.NoError(b, closeRetrier())
}
