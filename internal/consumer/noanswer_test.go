package consumer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
)

// Subscribe gives up with an error that says what it is, when the broker does not answer. Who tries
// again and again has one channel open all the same, and when there is an answer in the end, the
// consumer that nobody waits for is closed.
func TestSubscribe_NoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := fakebroker.NewReluctant(false)
		c := newTestConsumer(t, broker)
		queue := Queue{Topic: "orders", Name: "orders"}

		began := time.Now()
		for range 3 {
			_, err := c.Subscribe(t.Context(), queue)
			var noAnswer *topology.NoAnswerError
			require.ErrorAs(t, err, &noAnswer)
			assert.Equal(t, "orders", noAnswer.Queue)
			assert.Contains(t, err.Error(), "`rabbitmq-queues quorum_status -p '/' 'orders'`")
		}
		assert.Equal(t, openTimeout+2*declareTimeout, time.Since(began), "the others wait for the first, which might "+
			"still declare")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Subscribe(ctx, queue)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		broker.Expect(t, 1, 1)

		close(broker.Willing)
		synctest.Wait()
		broker.Expect(t, 1, 0, "those that have given up do not ask, and the consumer that nobody waits for is closed")

		_, err = c.Subscribe(t.Context(), queue)
		require.NoError(t, err)
		broker.Expect(t, 2, 1)
	})
}

// The consumer that comes when nobody waits for it any more is cancelled before its channel is
// closed: RabbitMQ closes the connection, and with it all other sessions, when a method follows a
// channel's close.
func TestSubscribe_AnswerComesLate(t *testing.T) {
	for range 20 { // the two goroutines are in another order most of the time
		synctest.Test(t, func(t *testing.T) {
			broker := fakebroker.NewReluctant(false)
			broker.Slow = time.Millisecond
			c := newTestConsumer(t, broker)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.Subscribe(ctx, Queue{Topic: "orders", Name: "orders"})
			require.ErrorIs(t, err, context.DeadlineExceeded)

			<-time.After(10 * time.Second)
			close(broker.Willing)
			<-time.After(10 * time.Second)
			broker.Expect(t, 1, 0)
		})
	}
}

// A subscription ends while the broker does not answer it after a lost connection. The consumer
// that comes in the end is closed: nobody would be given what it takes away.
func TestSubscriptionEnds_NoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := fakebroker.NewReluctant(true)
		c := newTestConsumer(t, broker)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		messages, err := c.Subscribe(ctx, Queue{Topic: "orders", Name: "orders"})
		require.NoError(t, err)

		broker.Cut()
		<-time.After(10 * time.Second)
		broker.Expect(t, 2, 1, "it consumes again")
		cancel()
		_, open := <-messages
		require.False(t, open, "the end does not wait for the broker")

		close(broker.Willing)
		<-time.After(10 * time.Second)
		broker.Expect(t, 2, 0, "the consumer that nobody waits for")
	})
}

// When the broker has cancelled a consumer, its channel is closed only when nothing else is on its
// way: RabbitMQ closes the connection, and with it all other sessions, when a method follows a
// channel's close.
func TestBrokerCancels_ChannelIsClosedLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := fakebroker.NewReluctant(true)
		broker.Slow = 10 * time.Millisecond
		c := newTestConsumer(t, broker)
		_, err := c.Subscribe(t.Context(), Queue{Topic: "orders", Name: "orders"})
		require.NoError(t, err)

		for range 5 {
			broker.CancelConsumers()
			<-time.After(10 * time.Second)
		}
		broker.Expect(t, 6, 1, "it consumes again each time")
	})
}

// A consumer closes while the broker does not answer, and others share its connection. Its channel
// closes behind the call that is under way, however long that takes: a method that follows it would
// cost all of them the connection.
func TestClose_NoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := fakebroker.NewReluctant(true)
		broker.Slow = time.Minute
		var shared Shared
		closes, stays := newSharingConsumer(t, broker, &shared), newSharingConsumer(t, broker, &shared)
		_, err := closes.Subscribe(t.Context(), Queue{Topic: "orders", Name: "orders"})
		require.NoError(t, err)
		_, err = stays.Subscribe(t.Context(), Queue{Topic: "invoices", Name: "invoices"})
		require.NoError(t, err)

		began := time.Now()
		require.NoError(t, closes.Close())
		assert.LessOrEqual(t, time.Since(began), 5*time.Second, "it does not wait for the answer")
		broker.Expect(t, 2, 2)
		<-time.After(2 * time.Minute)
		broker.Expect(t, 2, 1, "nobody has lost the connection, and the channel is closed in the end")
	})
}
