package consumer

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
	"github.com/amqpretry/watermill-retry/retry"
)

// consumer returns one that consumes from the broker until the test ends.
func newTestConsumer(t *testing.T, r *fakebroker.Reluctant) *Consumer {
	return newSharingConsumer(t, r, nil)
}

// newSharingConsumer makes one that shares its connection.
func newSharingConsumer(t *testing.T, r *fakebroker.Reluctant, shared *Shared) *Consumer {
	t.Helper()
	c, err := New(t.Context(), Settings{
		Shared: shared,
		Connection: connection.Settings{
			URI: "amqp://guest:guest@broker/", AMQP: &amqp091.Config{Dial: r.Dial}, Emit: func(retry.Event) {},
			Reconnect: connection.Reconnect{InitialInterval: time.Second, MaxInterval: time.Second, Multiplier: 1},
		},
		Logger: watermill.NopLogger{}, Consumer: "tag", Concurrency: 1, Prefetch: 1, Turns: &Turns{},
		CloseTimeout: time.Second,
		Engine:       &engine.Engine{Logger: watermill.NopLogger{}},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })

	return c
}

// len is how many queues are known.
func (c *consumed) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return len(c.queues)
}

func declaring(topic, queue string, declared *int) Queue {
	return Queue{Topic: topic, Name: queue, Declare: func(*connection.Link, *amqp091.Channel) error {
		*declared++
		return nil
	}}
}

// A consumer keeps nothing of queues that nobody subscribes to any more.
func TestConsumer_ForgetsQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := fakebroker.NewReluctant(false)
		c := newTestConsumer(t, broker)
		declared := 0

		for i := range 300 { // the broker does not answer yet
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := c.Subscribe(ctx, declaring("t", fmt.Sprintf("silent-%d", i), &declared))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		close(broker.Willing)
		synctest.Wait()
		assert.Zero(t, c.queues.len())

		for i := range 300 {
			ctx, cancel := context.WithCancel(t.Context())
			queue := fmt.Sprintf("brief-%d", i)
			messages, err := c.Subscribe(ctx, declaring("t", queue, &declared))
			require.NoError(t, err)
			assert.Equal(t, 1, c.queues.len())
			cancel()
			<-messages
			synctest.Wait()
		}
		assert.Zero(t, c.queues.len())
		broker.Expect(t, 600, 0)
	})
}

// What was declared is not declared again as long as somebody subscribes to it, nor for the
// subscription that it was initialized for.
func TestConsumer_DeclaresOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := fakebroker.NewReluctant(true)
		c := newTestConsumer(t, broker)
		a, b := 0, 0
		subscribe := func(s Queue) context.CancelFunc {
			ctx, cancel := context.WithCancel(t.Context())
			_, err := c.Subscribe(ctx, s)
			require.NoError(t, err)

			return func() {
				cancel()
				synctest.Wait()
			}
		}

		require.NoError(t, c.Initialize(t.Context(), declaring("a", "q", &a)))
		first := subscribe(declaring("a", "q", &a))
		second := subscribe(declaring("a", "q", &a))
		assert.Equal(t, 1, a)
		other := subscribe(declaring("b", "q", &b))
		assert.Equal(t, 1, b, "another topic has an exchange of its own")

		first()
		subscribe(declaring("a", "q", &a))()
		assert.Equal(t, 1, a)
		second()
		subscribe(declaring("a", "q", &a))()
		assert.Equal(t, 2, a, "nobody was subscribed to it")
		other()
		assert.Zero(t, c.queues.len())
	})
}
