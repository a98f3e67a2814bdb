package bench

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// durable is the config that everybody starts from.
func durable(b *testing.B, queueType string, prefetch int) amqp.Config {
	b.Helper()
	conf := amqp.NewDurableQueueConfig(brokertest.URI(b))
	conf.Queue.Arguments = arguments(queueType)
	conf.Consume.Qos.PrefetchCount = prefetch

	return conf
}

// newRetrier makes a retrier that logs nothing; the caller closes it after its router.
func newRetrier(b *testing.B, conf amqp.Config, options amqpretry.Options) *adapter.Retrier {
	b.Helper()
	options.Logger = watermill.NopLogger{}
	options.Prefetch = conf.Consume.Qos.PrefetchCount // its 1 would not be taken
	retrier, err := adapter.New(conf, options)
	require.NoError(b, err)

	return retrier
}

// newRouter makes a router that logs nothing.
func newRouter(b *testing.B) *message.Router {
	b.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 30 * time.Second}, watermill.NopLogger{})
	require.NoError(b, err)

	return router
}

// run runs a router until done is closed, for so long at the most, and closes it.
func run(b *testing.B, router *message.Router, done <-chan struct{}, within time.Duration) {
	b.Helper()
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()

	timeout := time.NewTimer(within)
	defer timeout.Stop()
	select {
	case <-done:
	case err := <-ended:
		b.Fatalf("the router has ended: %v", err)
	case <-timeout.C:
		b.Errorf("not done within %s", within)
	}
	require.NoError(b, router.Close())
}
