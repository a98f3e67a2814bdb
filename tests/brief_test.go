package tests

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// withChannels makes a service without handlers whose connections have so many channels.
func withChannels(t *testing.T, n uint16, warning time.Duration) *service {
	t.Helper()

	return newService(t, setup{
		KeepObjects: true, Route: func(*service) {},
		Configure: func(c *amqp.Config) { c.Connection.AmqpConfig = &amqp091.Config{ChannelMax: n} },
		Options: amqpretry.Options{
			Policies:    config.Policies{Default: config.Policy{Mode: config.ModeDeadLetter}},
			HoldWarning: warning,
		},
	})
}

// failing subscribes with a handler that always fails.
func (s *service) failing(ctx context.Context, sub message.Subscriber, topic string) (ended <-chan struct{},
	err error) {
	messages, err := sub.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	handler := s.Retrier.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errFate })
	return inBackground(func() { answer(messages, handler) }), nil
}

func (s *service) removeAll(queue string) { s.Broker.Remove(queue+".retry", queue, queue+".dlq") }

// Queues come and go, each with a message that fails. Of those that are gone nothing is kept: no
// channel on either connection, no goroutine, and no name.
func TestBriefQueuesLeaveNothing(t *testing.T) {
	t.Parallel()
	const channels, queues = 4, 15
	label := uniqueName("brief")
	pprof.Do(t.Context(), pprof.Labels("test", label), func(context.Context) {
		svc := withChannels(t, channels, await.Bound) // a slow broker is no held copy
		base, early := uniqueName("brief"), 0
		for i := range queues {
			queue := fmt.Sprintf("%s-%d", base, i)
			t.Cleanup(func() { svc.removeAll(queue) })
			ctx, cancel := context.WithCancel(t.Context())
			ended := must(svc.failing(ctx, svc.Sub, queue))(t)
			svc.Broker.Publish(queue, rabbit.Messages(queue)...)
			await.Until(t, func() bool { return len(svc.Letters()) == i+1 }, "%s fails", queue)
			cancel()
			await.Closed(t, ended, "the subscription ends")
			svc.removeAll(queue)
			if i == channels {
				early = len(goroutinesOf(label))
			}
		}
		assert.Empty(t, svc.Held())
		await.Until(t, func() bool { return len(goroutinesOf(label)) <= early }, "goroutines: %d before", early)
		depths, err := svc.Retrier.QueueDepths(t.Context())
		require.NoError(t, err, "a queue that is not subscribed to is not looked at")
		assert.Empty(t, depths)
		svc.close()
	})
}

// A connection that has no channel left says so, and what waits for one gets it when a subscription
// ends.
func TestNoChannelLeft(t *testing.T) {
	t.Parallel()
	const channels = 3
	svc := withChannels(t, channels, 300*time.Millisecond)
	base := uniqueName("channels")
	queue := func(i int) string { return fmt.Sprintf("%s-%d", base, i) }
	other := must(svc.Retrier.NewSubscriber())(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range channels {
		t.Cleanup(func() { svc.removeAll(queue(i)) })
		_, err := svc.failing(ctx, svc.Sub, queue(i))
		require.NoError(t, err)
		svc.Broker.Publish(queue(i), rabbit.Messages(queue(i))...)
	}
	await.Until(t, func() bool { return len(svc.Letters()) == channels }, "one channel each")

	last := queue(channels)
	t.Cleanup(func() { svc.removeAll(last) })
	_, err := svc.Sub.Subscribe(t.Context(), last)
	require.ErrorIs(t, err, amqp091.ErrChannelMax)
	require.ErrorContains(t, err, "all 3 channels of the connection are in use")

	_, err = svc.failing(t.Context(), other, last)
	require.NoError(t, err)
	svc.Broker.Publish(last, rabbit.Messages(last)...)
	// On a busy machine others may be held as well, and this one may first be held for something
	// else.
	of := func(kind retry.EventKind) func(retry.Event) bool {
		return func(e retry.Event) bool { return e.Kind == kind && e.Queue == last }
	}
	var held error
	await.Until(t, func() bool {
		return slices.ContainsFunc(svc.Events(retry.EventHeld), func(e retry.Event) bool {
			held = e.Err
			return of(retry.EventHeld)(e) && errors.Is(e.Err, amqp091.ErrChannelMax)
		})
	}, "it is held for want of a channel")
	require.ErrorIs(t, held, amqp091.ErrChannelMax)
	assert.NotContains(t, held.Error(), "alarm")

	cancel()
	await.Until(t, func() bool {
		return slices.ContainsFunc(svc.Events(retry.EventReleased), of(retry.EventReleased))
	}, "there is a channel again")
	await.Until(t, func() bool { return len(svc.Letters()) == channels+1 }, "it is dead")
	svc.close()
}
