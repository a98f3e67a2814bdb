package tests

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillv2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	watermillv3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv3"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

// either is a retrier for one version of watermill-amqp or the other.
type either interface {
	Middleware(message.HandlerFunc) message.HandlerFunc
	Plan(topic string) (topology.Plan, error)
	Close() error
}

// eitherWay makes the retriers of both versions with the same options, and gives of each its two
// kinds of subscribers.
func eitherWay(t *testing.T, uri string, options amqpretry.Options) (retriers []either,
	subscribers map[string]message.Subscriber) {
	t.Helper()

	v2 := watermillv2.NewDurableQueueConfig(uri)
	v2.Queue.Arguments, v2.Consume.Qos.PrefetchCount = mainQueueArguments("classic"), 5
	retrierV2 := must(amqpv2.New(v2, options))(t)
	v3 := watermillv3.NewDurableQueueConfig(uri)
	v3.Queue.Arguments, v3.Consume.Qos.PrefetchCount = mainQueueArguments("classic"), 5
	retrierV3 := must(amqpv3.New(v3, options))(t)

	subscribers = map[string]message.Subscriber{}
	subscribers["own v2"] = must(retrierV2.NewSubscriber())(t)
	subscribers["own v3"] = must(retrierV3.NewSubscriber())(t)
	subscribers["stock v2"] = must(watermillv2.NewSubscriber(retrierV2.Config(), watermill.NopLogger{}))(t)
	subscribers["stock v3"] = must(watermillv3.NewSubscriber(retrierV3.Config(), watermill.NopLogger{}))(t)

	return []either{retrierV2, retrierV3}, subscribers
}

// One queue is served by v2 and by v3 at once, by the retrier's own subscribers and by stock ones:
// whoever gets a message goes on where another has failed.
func TestBothVersionsServeOneQueue(t *testing.T) {
	t.Parallel()

	uri, queue := brokertest.URI(t), uniqueName("both")
	broker := newRabbit(t, uri)
	retriers, subscribers := eitherWay(t, uri, amqpretry.Options{Policies: retries(ms(50, 100)...),
		CloseTimeout: time.Minute})
	plans := make([]topology.Plan, len(retriers))
	for i, retrier := range retriers {
		plans[i] = must(retrier.Plan(queue))(t)
	}
	assert.Equal(t, plans[0], plans[1], "the same topology")
	t.Cleanup(func() { broker.RemovePlan(plans[0]) })

	type serving struct {
		id, by  string
		attempt int
	}
	var servings records[serving]
	var routers []*message.Router
	for name, subscriber := range subscribers {
		// both: each leaves the other's messages alone
		router := newRouter(t, watermill.NopLogger{}, retriers[0].Middleware, retriers[1].Middleware)
		router.AddConsumerHandler(name, queue, subscriber, func(msg *message.Message) error {
			attempt, known := retry.AttemptFromContext(msg.Context())
			assert.True(t, known)
			servings.put(serving{msg.UUID, name, attempt.Number})

			return errors.New("boom")
		})
		routers = append(routers, router)
		runRouter(t, router)
	}

	ids := rabbit.Numbered("m", 200)
	broker.Publish(queue, rabbit.Messages(ids...)...)
	letters := broker.Take(queue+".dlq", len(ids))
	for _, router := range routers {
		require.NoError(t, router.Close())
	}
	for _, retrier := range retriers {
		require.NoError(t, retrier.Close())
	}

	handlers := map[string]int{}
	for _, letter := range letters {
		assert.Equal(t, strconv.Itoa(3), rabbit.Text(letter, header.Attempts), rabbit.UUID(letter))
		handlers[rabbit.Text(letter, header.Handler)]++
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(subscribers)), slices.Collect(maps.Keys(handlers)),
		"all of them had some")
	shared, attempts, first := 0, map[string][]int{}, map[string]string{}
	for _, s := range servings.All() {
		attempts[s.id] = append(attempts[s.id], s.attempt)
		if s.attempt == 1 {
			first[s.id] = s.by
		} else if s.by != first[s.id] {
			shared++
		}
	}
	for _, id := range ids {
		assert.Equal(t, []int{1, 2, 3}, attempts[id], id)
	}
	assert.Positive(t, shared, "messages that one has failed and another has gone on with")
	assert.Len(t, attempts, len(ids))
}

// Under v3 two topics may share a queue and be bound each by its own key; with the stock subscriber
// as with the retrier's own.
func TestV3_TopicsThatShareAQueueAreBoundEach(t *testing.T) {
	t.Parallel()

	for _, stock := range []bool{false, true} {
		t.Run(map[bool]string{false: "own", true: "stock"}[stock], func(t *testing.T) {
			t.Parallel()

			uri, exchange, queue := brokertest.URI(t), uniqueName("topics"), uniqueName("both")
			conf := watermillv3.NewDurableTopicConfig(uri, exchange, queue)
			conf.Queue.Arguments = mainQueueArguments("quorum")
			retrier, err := amqpv3.New(conf, amqpretry.Options{Policies: retries(ms(50)...)})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, retrier.Close()) })
			broker := newRabbit(t, uri)
			t.Cleanup(func() {
				broker.Remove(queue+".retry", queue, queue+".retry.50ms", queue+".dlq")
				broker.Remove(exchange)
			})

			var subscriber message.Subscriber
			if stock {
				subscriber, err = watermillv3.NewSubscriber(retrier.Config(), watermill.NopLogger{})
			} else {
				subscriber, err = retrier.NewSubscriber()
			}
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
			var wg sync.WaitGroup
			for _, topic := range []string{"orders", "invoices", "returns"} {
				// at once: a stock subscriber generates the name and builds in two steps
				wg.Go(func() {
					assert.NoError(t, subscriber.(message.SubscribeInitializer).SubscribeInitialize(topic))
				})
			}
			wg.Wait()

			publisher := must(watermillv3.NewPublisher(retrier.Config(), watermill.NopLogger{}))(t)
			t.Cleanup(func() { require.NoError(t, publisher.Close()) })
			for _, topic := range []string{"orders", "invoices", "returns", "nobody"} {
				require.NoError(t, publisher.Publish(topic, message.NewMessage(topic, []byte("x"))))
			}
			got := []string{}
			for _, d := range broker.Take(queue, 3) {
				got = append(got, rabbit.UUID(d))
			}
			assert.ElementsMatch(t, []string{"orders", "invoices", "returns"}, got)

			file := must(retrier.Definitions("orders", "invoices"))(t)
			assert.Contains(t, string(file), `"routing_key": "orders"`)
			assert.Contains(t, string(file), `"routing_key": "invoices"`)
		})
	}
}

// A message that the broker has delivered before says so under v3, with the retrier's own
// subscriber as with the stock one; and only such a message does, whatever its publisher has passed
// on.
func TestV3_RedeliveredMessagesSaySo(t *testing.T) {
	t.Parallel()

	uri, queue := brokertest.URI(t), uniqueName("both")
	conf := watermillv3.NewDurableQueueConfig(uri)
	conf.Queue.Arguments = mainQueueArguments("classic")
	retrier := must(amqpv3.New(conf, amqpretry.Options{}))(t)
	t.Cleanup(func() { require.NoError(t, retrier.Close()) })
	plan := must(retrier.Plan(queue))(t)
	broker := newRabbit(t, uri)
	t.Cleanup(func() { broker.RemovePlan(plan) })
	subscriber := must(retrier.NewSubscriber())(t)
	messages := must(subscriber.Subscribe(t.Context(), queue))(t)

	plain, forged := rabbit.Message("plain", "x"), rabbit.Message("forged", "x")
	forged.Headers[watermillv3.MetadataRedeliveredKey] = "true"
	for _, publishing := range []amqp091.Publishing{plain, forged} {
		broker.Publish(queue, publishing)
		first := receive(t, messages)
		assert.False(t, watermillv3.IsMessageRedelivered(first), first.UUID)
		first.Nack()
		again := receive(t, messages)
		assert.True(t, watermillv3.IsMessageRedelivered(again), again.UUID)
		again.Ack()
	}
}

func receive(t *testing.T, messages <-chan *message.Message) *message.Message {
	t.Helper()
	msg := await.Value(t, messages, "a message")
	require.NotNil(t, msg, "the subscription has ended")

	return msg
}
