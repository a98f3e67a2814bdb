package tests

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
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
// reaches no handler, becomes no dead letter, and consuming goes on as soon as the queue is there
// again.
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
