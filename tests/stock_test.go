package tests

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
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
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// newStock makes a service on watermill-amqp's own subscriber and the retrier's config, which does
// not run yet.
func newStock(t *testing.T, c setup) *service {
	t.Helper()
	handler := c.Handler
	c.Options.Policies = withoutStrategy(c.policies())
	c.Route = func(svc *service) {
		require.NoError(t, svc.Sub.Close()) // the one that the harness has made
		stock := must(amqp.NewSubscriber(svc.Retrier.Config(), svc.Logs))(t)
		svc.Router.AddConsumerHandler(uniqueName("handler"), svc.Queue, stock, svc.recorded(handler))
	}

	return newService(t, c)
}

func startStock(t *testing.T, c setup) *service {
	t.Helper()
	s := newStock(t, c)
	s.run()

	return s
}

// The stock subscriber on the retrier's config: retries after their delays, attempts, dead letters,
// on classic and quorum.
func TestStock_RetriesAndDeadLetters(t *testing.T) {
	t.Parallel()

	eachQueueType(t, func(t *testing.T, queueType string) {
		var s seen
		svc := startStock(t, setup{Delays: ms(100, 150), Tiers: true, QueueType: queueType,
			Handler: s.handler(func(msg *message.Message) error {
				if msg.UUID == "twice" {
					return failing(2)(msg)
				}
				if msg.UUID == "fine" {
					return nil
				}

				return failing(9)(msg)
			})})

		svc.Broker.Publish(svc.Queue, with("twice", amqp091.Table{"n": int32(1)}), with("dead", nil),
			with("fine", nil))
		dead := svc.Broker.Take(svc.dlq(), 1)[0]
		await.Until(t, func() bool { return s.count() == 7 }, "2+1, 3 and 1 calls")

		assert.Equal(t, "dead", rabbit.UUID(dead))
		assert.Equal(t, "dead", string(dead.Body))
		hasHeaders(t, dead, headers{header.Reason: "exhausted", header.Attempts: "3", header.Error: "failure 3",
			header.Queue: svc.Queue})
		assert.Len(t, historyOf(t, dead), 3)

		for _, id := range []string{"twice", "dead"} {
			calls := s.of(id)
			require.Len(t, calls, 3)
			for i, v := range calls {
				assert.Equal(t, i+1, v.Attempt.Number)
				assert.Equal(t, i == 2, v.Attempt.Last)
				assert.Equal(t, svc.Queue, v.Attempt.Queue)
				assert.Empty(t, ownKeys(v.Metadata))
				if i > 0 {
					assert.GreaterOrEqual(t, v.At.Sub(calls[i-1].Left), ms(99, 149)[i-1])
				}
			}
		}
		await.Until(t, func() bool { return len(svc.Letters()) > 0 }, "the dead letter is confirmed")
		require.Len(t, svc.Letters(), 1)
		assert.Equal(t, "dead", svc.Letters()[0].Message.UUID)
		for _, queue := range []string{svc.Queue, svc.dlq(), svc.retryQueue(100 * time.Millisecond)} {
			assert.Zero(t, svc.Broker.Depth(queue))
		}
	})
}

// picky is a marshaler that rejects, or panics over, what its user does not want.
type picky struct{ amqp.DefaultMarshaler }

func (m picky) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	switch string(d.Body) {
	case "reject":
		return nil, errors.New("this is no order")
	case "panic":
		panic("marshaler's bug")
	case "neither":
		return nil, nil //nolint:nilnil // that is the point
	}

	return m.DefaultMarshaler.Unmarshal(d)
}

// What the user's marshaler rejects goes to the dead-letter queue as it is, at once, and no handler
// sees it.
func TestStock_Undecodable(t *testing.T) {
	t.Parallel()

	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		c := setup{Delays: ms(50, 60), Handler: succeed}
		c.Configure = func(conf *amqp.Config) { conf.Marshaler = picky{} }
		svc := run(t, c)

		texts := map[string]string{"reject": "this is no order", "panic": "marshaler's bug", "neither": "neither " +
			"a message nor an error"}
		for body := range texts {
			svc.Broker.Publish(svc.Queue, amqp091.Publishing{Body: []byte(body),
				Headers: amqp091.Table{"n": int64(5)}, MessageId: body})
		}
		svc.publish("fine")

		for _, dead := range svc.Broker.Take(svc.dlq(), 3) {
			body := string(dead.Body)
			assert.Equal(t, body, dead.MessageId)
			assert.Equal(t, int64(5), dead.Headers["n"])
			assert.Equal(t, "undecodable", rabbit.Text(dead, header.Reason), body)
			assert.Contains(t, rabbit.Text(dead, header.Error), texts[body])
			hasHeaders(t, dead, headers{header.Attempts: "0", header.Topic: svc.Queue})
			assert.Equal(t, "undecodable", historyOf(t, dead)[0].Reason)
		}
		await.Until(t, func() bool { return svc.Calls.count() == 1 }, "the next one is handled")
		assert.Equal(t, map[string]int{"fine": 1}, svc.Calls.ids())
		await.Until(t, func() bool { return len(svc.Letters()) >= 3 }, "the dead letters are confirmed")
		assert.Len(t, svc.Letters(), 3)
	})
}

// A queue that is deleted under a stock subscriber makes it hand out one empty message, a ghost. It
// reaches no handler, and consuming goes on.
func TestStock_GhostReachesNoHandler(t *testing.T) {
	t.Parallel()

	svc := startStock(t, setup{Handler: succeed})
	svc.publish("before")
	await.Until(t, func() bool { return svc.Calls.count() == 1 }, "handled")

	svc.Broker.Do(func(ch *amqp091.Channel) error {
		_, err := ch.QueueDelete(svc.Queue, false, false, false)
		return err
	})
	await.Until(t, func() bool { return svc.Broker.Consumers(svc.Queue) == 1 }, "it consumes again")
	svc.publish("after")
	await.Until(t, func() bool { return svc.Calls.ids()["after"] == 1 }, "handled")

	assert.Equal(t, map[string]int{"before": 1, "after": 1}, svc.Calls.ids())
	assert.Zero(t, svc.Broker.Depth(svc.dlq()))
	assert.Empty(t, svc.Letters())
}

// A stock subscriber's messages tell the topic and not the queue, so a generator whose names change
// is refused: a failed message would go to another queue's retries.
func TestStock_UnstableNameGeneratorIsRefused(t *testing.T) {
	t.Parallel()

	uri, topic := brokertest.URI(t), uniqueName("promise")
	var n atomic.Int32
	conf := amqp.NewDurableQueueConfig(uri)
	conf.Queue.GenerateName = func(topic string) string { return topic + "-" + string('a'+n.Add(1)-1) }
	broker := newRabbit(t, uri)
	t.Cleanup(func() {
		for _, q := range []string{topic + "-a", topic + "-b"} {
			broker.Remove(q+".retry", q, q+".dlq", q+".retry.50ms")
		}
	})

	retrier := newRetrier(t, conf, amqpretry.Options{Policies: retries(ms(50)...)})
	stock := must(amqp.NewSubscriber(retrier.Config(), newLogs(t)))(t)
	t.Cleanup(func() { _ = stock.Close() })

	_, err := stock.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	_, err = stock.Subscribe(t.Context(), topic)
	require.ErrorContains(t, err, "not stable")
	assert.Equal(t, -1, broker.Depth(topic+"-b"), "nothing was declared")

	// The retrier's own subscriber pins the name for each subscription.
	own := must(retrier.NewSubscriber())(t)
	for range 2 {
		_, err = own.Subscribe(t.Context(), topic)
		require.NoError(t, err)
	}
	for _, q := range []string{topic + "-c", topic + "-d"} {
		assert.Equal(t, 1, broker.Consumers(q), q)
		broker.Remove(q+".retry", q, q+".dlq", q+".retry.50ms")
	}
}

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
	assert.ElementsMatch(t, slices.Collect(maps.Keys(subscribers)), slices.Collect(maps.Keys(handlers)), "all")
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

// A message that the broker has delivered before says so under v3, and only such a message does,
// whatever its publisher has passed on.
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
