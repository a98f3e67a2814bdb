package amqpretry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/consumer"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
	"github.com/amqpretry/watermill-retry/retry"
)

// A topic that was prepared and that nobody subscribes to is forgotten after a minute, or with the
// subscriber. A subscription keeps it.
func TestPrepare_Forgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Retrier{registry: newRegistry()}
		r.options = Options{AssumeTopology: true}
		r.options.setDefaults()
		r.options.Logger = watermill.NopLogger{}
		r.config.Queue.GenerateName = func(topic string) string { return topic }
		r.config.Exchange.GenerateName = func(string) string { return "" }
		r.ctx, r.close = context.WithCancelCause(t.Context())
		consumer, err := consumer.New(t.Context(), consumer.Settings{
			Connection: connection.Settings{URI: "amqp://guest:guest@broker/", Emit: func(retry.Event) {},
				AMQP: &amqp091.Config{Dial: fakebroker.NewReluctant(true).Dial}},
			Logger: watermill.NopLogger{}, Concurrency: 1, Prefetch: 1, Turns: &consumer.Turns{},
			CloseTimeout: time.Second, Engine: &engine.Engine{Logger: watermill.NopLogger{}},
		})
		require.NoError(t, err)
		s := &Subscriber{retrier: r, consumer: consumer, prepared: map[string]*prepared{}}
		s.ctx, s.close = context.WithCancelCause(r.ctx)

		require.NoError(t, s.Prepare(t.Context(), "a", "b", "a"))
		assert.Len(t, r.registry.plans(), 2)
		_, err = s.Subscribe(t.Context(), "a")
		require.NoError(t, err)
		assert.Len(t, r.registry.plans(), 2)
		<-time.After(preparedFor + time.Second)
		assert.Len(t, r.registry.plans(), 1)
		assert.Empty(t, s.prepared)

		require.NoError(t, s.Prepare(t.Context(), "c", "d"))
		assert.Len(t, r.registry.plans(), 3)
		require.NoError(t, s.Close())
		synctest.Wait()
		assert.Zero(t, r.registry.size())
		require.ErrorIs(t, s.Prepare(t.Context(), "c"), ErrClosed)
		assert.Zero(t, r.registry.size())
	})
}
