package peers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/internal/versions/amqpretry"
	"github.com/amqpretry/watermill-retry/middleware"
)

// plug is this library, with its own consumer.
type plug struct{}

func (plug) String() string { return "the plug" }

func (plug) arguments(q queue) amqp091.Table { return amqp091.Table{"x-queue-type": q.queueType} }

func (plug) beside(q queue) objects {
	retry := q.name + ".retry.1s"
	if q.retryType == classic {
		retry += ".classic"
	}

	return objects{retry: retry, dead: q.name + ".dlq", exchanges: []string{q.name + ".retry"}}
}

func (p plug) start(b *testing.B, uri string, q queue, c *calls) func() {
	b.Helper()
	conf := amqp.NewDurableQueueConfig(uri)
	conf.Queue.Arguments = p.arguments(q)
	conf.Consume.Qos.PrefetchCount = prefetch
	retry, err := amqpretry.New(conf, amqpretry.Options{
		Logger:   watermill.NopLogger{},
		Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{wait}, QueueType: config.QueueType(q.retryType)}},
	})
	require.NoError(b, err)
	subscriber, err := retry.NewSubscriber()
	require.NoError(b, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(b, err)
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("peer", q.name, subscriber, func(msg *message.Message) error {
		attempt, _ := middleware.AttemptFromContext(msg.Context())
		c.handle(msg.UUID, attempt.Number > 1)
		if attempt.Number > 1 {
			return nil
		}

		return errOnce
	})

	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()

	return func() {
		require.NoError(b, router.Close())
		require.NoError(b, <-ended)
		require.NoError(b, retry.Close())
	}
}

var errOnce = errors.New("fails once")
