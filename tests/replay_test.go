package tests

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// lettersOf opens the dead-letter queue of a service.
func lettersOf(t *testing.T, svc *service, uri string) *dlq.Queue {
	t.Helper()
	client, err := dlq.Open(t.Context(), dlq.Config{URI: uri, NoDeliveryLimitPolicy: true})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })

	return client.Queue(svc.Queue)
}

// A dead letter that is replayed has a new life, and only in the queue that has failed it; one that
// dies again says so.
func TestReplayedMessagesLiveAgain(t *testing.T) {
	t.Parallel()
	for name, strategy := range map[string]config.Strategy{"own": "", "shared": config.StrategyShared} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			uri, topic := brokertest.URI(t), uniqueName("events")
			group := func(name string, s *seen, h func(*message.Message) error) *service {
				c := setup{URI: uri, Queue: topic, Handler: s.handler(h)}
				c.Options.Policies = config.Policies{Default: config.Policy{Delays: ms(60), Strategy: strategy,
					MaxAge: 3 * time.Second}}
				c.Options.Names.Shared = topic + "-shared"
				c.Configure = func(conf *amqp.Config) {
					*conf = amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(name))
				}

				return start(t, c)
			}
			var failed, other seen
			broker := newRabbit(t, uri)
			t.Cleanup(func() {
				_ = broker.Try(func(ch *amqp091.Channel) error { return ch.ExchangeDelete(topic, false, false) })
			})
			group("a", &failed, func(msg *message.Message) error { // the first life, and the first call of the second
				if a, _ := retry.AttemptFromContext(msg.Context()); a.Replays == 1 && a.Number == 2 {
					return nil
				}

				return errors.New("not yet")
			})
			group("b", &other, succeed)
			broker.PublishTo(topic, "", rabbit.Messages("1")...)
			client, err := dlq.Open(t.Context(), dlq.Config{URI: uri, NoDeliveryLimitPolicy: true})
			require.NoError(t, err)
			defer func() { _ = client.Close() }()
			letters := client.Queue(topic + "_a")
			dead := func(n int) {
				await.Until(t, func() bool {
					depth, err := letters.Depth(t.Context())
					return err == nil && depth == n
				}, "%d dead", n)
			}
			dead(1)
			letter, err := letters.Get(t.Context(), "1")
			require.NoError(t, err)
			assert.Equal(t, retry.ReasonExhausted, letter.Reason)
			await.Stays(t, 3200*time.Millisecond, func() bool {
				return failed.count() == 2
			}, "it gets too old for its first life")

			report, err := letters.Run(t.Context(), dlq.Plan{Kind: dlq.Replay})
			require.NoError(t, err)
			assert.Equal(t, 1, report.Done)
			await.Until(t, func() bool { return failed.count() == 4 }, "called twice again")
			calls := failed.of("1")
			assert.Equal(t, []int{1, 2, 1, 2}, []int{calls[0].Attempt.Number, calls[1].Attempt.Number,
				calls[2].Attempt.Number, calls[3].Attempt.Number})
			assert.Equal(t, []int{0, 0, 1, 1}, []int{calls[0].Attempt.Replays, calls[1].Attempt.Replays,
				calls[2].Attempt.Replays, calls[3].Attempt.Replays})
			assert.Empty(t, calls[2].Metadata, "neither our keys nor Watermill's")
			assert.Equal(t, 1, other.count(), "nobody else sees it again")
			dead(0)
		})
	}
}

func TestReplayedMessagesDieAgain(t *testing.T) {
	t.Parallel()
	var s seen
	c := setup{URI: brokertest.URI(t), Handler: s.handler(failing(99))}
	c.Options.Policies = retries(ms(40)...)
	svc := start(t, c)
	svc.Broker.Publish(svc.Queue, rabbit.Messages("1", "2", "3")...)
	letters := lettersOf(t, svc, c.URI)
	dead := func(n int) {
		await.Until(t, func() bool {
			depth, err := letters.Depth(t.Context())
			return err == nil && depth == n
		}, "%d dead", n)
	}
	dead(3)

	report, err := letters.Run(t.Context(), dlq.Plan{Kind: dlq.Replay,
		Canary: dlq.Canary{Messages: 1, Watch: time.Minute}})
	require.NoError(t, err)
	assert.Equal(t, "0 of 1 handled, 1 failed again", report.Canary.Stopped)
	assert.Equal(t, 1, report.Done)
	dead(3)
	again := 0
	for letter, err := range letters.Browse(t.Context(), dlq.Filter{MinReplays: 1}) {
		require.NoError(t, err)
		again++
		assert.Equal(t, 4, letter.Calls)
		require.Len(t, letter.History, 4)
		assert.Equal(t, retry.ReasonExhausted, letter.History[1].Reason, "the earlier reason")
		assert.Equal(t, report.Run, letter.Message.Headers[header.Replay])
	}
	assert.Equal(t, 1, again)
}
