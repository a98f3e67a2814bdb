package tests

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// The retrier tells how many messages wait and how many are dead, for each queue beside the main
// queues.
func TestQueueDepths(t *testing.T) {
	t.Parallel()

	c := setup{Tiers: true, Handler: func(msg *message.Message) error {
		if msg.UUID == "dead" {
			return retry.Permanent(errFate)
		}

		return errFate
	}}
	c.Options.Policies = retries(time.Hour, 2*time.Hour)
	svc := start(t, c)
	svc.publish("1", "2", "dead")
	await.Until(t, func() bool {
		return len(svc.Events(retry.EventRetried, retry.EventDeadLettered)) == 3
	}, "all end")

	expected := []retry.QueueDepth{
		{Queue: svc.dlq(), Role: retry.QueueRoleDeadLetter, MainQueue: svc.Queue, Messages: 1},
		{Queue: svc.retryQueue(time.Hour), Role: retry.QueueRoleRetry, MainQueue: svc.Queue, Messages: 2,
			Wait: time.Hour},
		{Queue: svc.retryQueue(2 * time.Hour), Role: retry.QueueRoleRetry, MainQueue: svc.Queue, Wait: 2 * time.Hour},
	}
	var depths []retry.QueueDepth
	await.Until(t, func() bool { // a quorum queue may not have counted yet
		var err error
		depths, err = svc.Retrier.QueueDepths(t.Context())
		return err == nil && assert.ObjectsAreEqual(expected, depths)
	}, "%v", depths)

	svc.Broker.Remove("", svc.dlq()) // the first that it looks at
	await.Until(t, func() bool {
		depths, err := svc.Retrier.QueueDepths(t.Context())
		return assert.ErrorContains(t, err, svc.dlq()) && assert.ObjectsAreEqual(expected[1:], depths)
	}, "the rest is told all the same")

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for range 300 { // a look that comes to its end in the same moment
		if depths, err := svc.Retrier.QueueDepths(cancelled); err == nil {
			require.Len(t, depths, 2, "nothing is missing without an error")
		}
	}
}

// Shared retry queues belong to no main queue, and are looked at once.
func TestQueueDepths_Shared(t *testing.T) {
	t.Parallel()

	uri, prefix, a, b := brokertest.URI(t), uniqueName("shared"), uniqueName("depth"), uniqueName("depth")
	retrier := newRetrier(t, amqp.NewDurableQueueConfig(uri), shared(t, prefix, false, ms(100)...))
	depths := must(retrier.QueueDepths(t.Context()))(t)
	assert.Empty(t, depths, "nothing is subscribed to")

	sub := must(retrier.NewSubscriber())(t)
	broker := newRabbit(t, uri)
	for _, topic := range []string{a, b} {
		t.Cleanup(func() { broker.Remove("", topic, topic+".dlq") })
		require.NoError(t, sub.SubscribeInitialize(topic))
	}
	depths = must(retrier.QueueDepths(t.Context()))(t)
	mains := map[string]string{}
	for _, d := range depths {
		mains[d.Queue] = d.MainQueue
	}
	assert.Equal(t, map[string]string{a + ".dlq": a, b + ".dlq": b, prefix + ".100ms": ""}, mains)
}

// A broker that does not answer costs the time that it is given, and nothing else.
func TestQueueDepths_NoAnswer(t *testing.T) {
	t.Parallel()

	network := newProxy(t, brokertest.URI(t))
	svc := start(t, setup{Tiers: true, URI: network.URI, Handler: succeed})
	_, err := svc.Retrier.QueueDepths(t.Context())
	require.NoError(t, err)

	network.stallAnswers(observer)
	for range 2 { // the second look waits for the first, which still waits for the broker
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		began := time.Now()
		_, err = svc.Retrier.QueueDepths(ctx)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Less(t, time.Since(began), 15*time.Second, "amqp091-go gives up a silent connection after 30 s")
	}
	svc.publish("1")
	await.Until(t, func() bool { return svc.Calls.count() == 1 }, "messages go on")

	network.resume()
	await.Until(t, func() bool {
		depths, err := svc.Retrier.QueueDepths(t.Context())
		return err == nil && len(depths) == 2
	}, "it answers again")
}
