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

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// retrier is this library, with its own consumer.
type retrier struct{}

func (retrier) String() string { return "the retrier" }

func (retrier) arguments(q queue) amqp091.Table { return amqp091.Table{"x-queue-type": q.queueType} }

func (retrier) beside(q queue) objects {
	retry := q.name + ".retry.1s"
	if q.retryType == classic {
		retry += ".classic"
	}

	return objects{retry: retry, dead: q.name + ".dlq", exchanges: []string{q.name + ".retry"}}
}

func (r retrier) start(b *testing.B, uri string, q queue, c *calls) func() {
	b.Helper()
	conf := amqp.NewDurableQueueConfig(uri)
	conf.Queue.Arguments = r.arguments(q)
	conf.Consume.Qos.PrefetchCount = prefetch
	own, err := adapter.New(conf, amqpretry.Options{
		Logger: watermill.NopLogger{},
		Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{wait},
			ClassicQueues: q.retryType == "classic"}},
	})
	require.NoError(b, err)
	subscriber, err := own.NewSubscriber()
	require.NoError(b, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(b, err)
	router.AddMiddleware(own.Middleware)
	router.AddConsumerHandler("peer", q.name, subscriber, func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
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
		require.NoError(b, own.Close())
	}
}

var errOnce = errors.New("fails once")
