package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/retry"
)

// leaderless takes a quorum queue's leader away, for good. A member that stays behind alone with a
// quorum of members that are down never becomes leader, and so does what RabbitMQ 3.10 and 4.0 make
// of a queue that was declared less than a second before they were killed; this is a third way,
// which needs no luck.
func leaderless(broker *brokertest.Broker, queue string) {
	broker.Ctl("eval", fmt.Sprintf(`
		Name = list_to_atom("%%2F_%s"), Id = {Name, node()}, Cluster = quorum_queues,
		ok = ra:stop_server(Cluster, Id),
		Old = ra_directory:uid_of(Cluster, Name),
		{ok, Config} = ra_server_sup_sup:recover_config(Cluster, Name),
		_ = ra_directory:unregister_name(Cluster, Old),
		Init = maps:get(log_init_args, Config),
		New = <<"%s">>,
		ok = ra:start_server(Cluster, Config#{uid => New, log_init_args => Init#{uid => New}}).`, queue,
		watermill.NewShortUUID()))
}

// elect lets its member become leader.
func elect(broker *brokertest.Broker, queue string) {
	broker.Ctl("eval", fmt.Sprintf(`ok = ra:trigger_election({list_to_atom("%%2F_%s"), node()}).`, queue))
}

func onPrivate(uri, queueType string) setup {
	return setup{URI: uri, QueueType: queueType, KeepObjects: true, Handler: byFate,
		Options: amqpretry.Options{CloseTimeout: time.Second}}
}

// A quorum queue without leader answers nobody: no confirm, no nack, no consume-ok. What is to go
// into it is held, and who wants to consume from it is told.
func TestLeaderless_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t)

	t.Run("dead-letter queue", func(t *testing.T) {
		t.Parallel()
		svc := start(t, onPrivate(broker.URI, ""))
		leaderless(broker, svc.dlq())
		svc.publish("never-0", "ok-0", "once-0")
		held := svc.reportedHeld(1)
		assert.Contains(t, held.Error(), "leaderless")
		assert.Contains(t, held.Error(), "`rabbitmqctl list_unresponsive_queues -p '/'`")
		await.Until(t, func() bool { return svc.processed() == 2 }, "healthy messages go on")
		assert.Equal(t, []int{1, 2}, svc.Calls.attempts("never-0"), "its handler is not called again")

		elect(broker, svc.dlq())
		await.Until(t, func() bool { return len(svc.Letters()) == 1 }, "it goes on by itself")
		assert.Len(t, svc.Broker.Drain(svc.dlq()), 1)
	})

	t.Run("close while it is held", func(t *testing.T) {
		t.Parallel()
		svc := start(t, onPrivate(broker.URI, ""))
		leaderless(broker, svc.dlq())
		svc.publish("never-0")
		_ = svc.reportedHeld(1)
		assert.Less(t, svc.close(), longClose)
		await.Until(t, func() bool { return svc.Broker.Depth(svc.Queue) == 1 }, "the message is in its queue")
	})

	t.Run("main queue", func(t *testing.T) {
		t.Parallel()
		svc := newService(t, onPrivate(broker.URI, "quorum"))
		require.NoError(t, svc.Sub.SubscribeInitialize(svc.Queue))
		leaderless(broker, svc.Queue)

		// Whoever is not ready to wait is not made to.
		gaveUp := errors.New("given up")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, gaveUp)
		defer cancel()
		began := time.Now()
		_, err := svc.Sub.Subscribe(ctx, svc.Queue)
		require.ErrorIs(t, err, gaveUp)
		assert.Less(t, time.Since(began), 20*time.Second, "without the context it gives up after 30 s")

		// It takes no messages away once there is a leader.
		elect(broker, svc.Queue)
		messages := must(svc.Sub.Subscribe(t.Context(), svc.Queue))(t)
		svc.publish("ok-0", "ok-1")
		for range 2 {
			// None is given to the consumer that nobody reads.
			msg := await.Value(t, messages, "a message")
			require.NotNil(t, msg, "the subscription ends")
			msg.Ack()
		}
		await.Until(t, func() bool {
			return svc.Broker.Consumers(svc.Queue) == 1
		}, "the consumer that was given up is gone")
	})

	t.Run("main queue, reconnect", func(t *testing.T) {
		t.Parallel()
		network := newProxy(t, broker.URI)
		svc := start(t, onPrivate(network.URI, "quorum"))
		network.refuse(subscriber)
		leaderless(broker, svc.Queue)
		network.allow(subscriber)
		await.Until(t, func() bool { return network.dialled(subscriber) > 1 }, "it is connected again")
		await.Stays(t, time.Second, func() bool {
			return len(svc.Events(retry.EventConsuming)) == 1
		}, "it consumes without a leader")
		elect(broker, svc.Queue)
		await.Until(t, func() bool { return len(svc.Events(retry.EventConsuming)) == 2 }, "it goes on by itself")
		svc.publish("ok-0")
		await.Until(t, func() bool { return svc.processed() == 1 }, "messages are handled")
	})

	t.Run("close while it waits for a leader", func(t *testing.T) {
		t.Parallel()
		network := newProxy(t, broker.URI)
		svc := start(t, onPrivate(network.URI, "quorum"))
		network.refuse(subscriber)
		leaderless(broker, svc.Queue)
		network.allow(subscriber)
		await.Until(t, func() bool { return network.dialled(subscriber) > 1 }, "it is connected again")
		assert.Less(t, svc.close(), longClose)
	})
}
