package tests

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	routermiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// ownRetrier shortens signatures.
type ownRetrier = *adapter.Retrier

// What Subscribe refuses, it refuses before it has declared anything, and the subscriber works on
// for other topics.
func TestSubscribeRefuses(t *testing.T) {
	t.Parallel()

	uri, base := brokertest.URI(t), uniqueName("r")
	broker := newRabbit(t, uri)

	queues := map[string]string{ // of each topic
		"empty": "", "reserved": "amq." + base, "256 bytes": strings.Repeat("q", 256),
		"no room for a suffix": strings.Repeat("q", 250),
		"orders":               base, "invoices": base, "letters": base + ".dlq", "waiting": base + ".retry.50ms",
		"fine": base + ".fine",
	}
	conf := amqp.NewDurableQueueConfig(uri)
	conf.Queue.GenerateName = func(topic string) string { return queues[topic] }
	options := amqpretry.Options{Logger: newLogs(t), Policies: retries(ms(50)...)}
	options.Policies.Topics = map[string]config.Policy{"invoices": {Delays: ms(60)}}
	retrier := newRetrier(t, conf, options)
	subscriber := must(retrier.NewSubscriber())(t)
	t.Cleanup(func() { // behind the subscriptions
		require.NoError(t, retrier.Close())
		for _, q := range []string{base, base + ".fine"} {
			broker.Remove(q+".retry", q, q+".retry.50ms", q+".dlq")
		}
	})

	_, err := subscriber.Subscribe(t.Context(), "orders")
	require.NoError(t, err)

	for _, topic := range []string{"empty", "reserved", "256 bytes", "no room for a suffix", "letters", "waiting"} {
		_, err := subscriber.Subscribe(t.Context(), topic)
		refused := errorAs[*topology.NameError](t, err, topic)
		require.ErrorAs(t, subscriber.SubscribeInitialize(topic), &refused, topic)
	}

	_, err = subscriber.Subscribe(t.Context(), "invoices")
	shared := errorAs[*topology.SharedQueueError](t, err)
	assert.Equal(t, topology.SharedQueueError{Queue: base, Topics: [2]string{"orders", "invoices"}}, *shared)
	assert.Equal(t, -1, broker.Depth(base+".retry.60ms"), "nothing was declared")

	_, err = subscriber.Subscribe(t.Context(), "fine")
	require.NoError(t, err)
	assert.Equal(t, 1, broker.Consumers(base+".fine"))
}

// Two topics may share a queue under one policy.
func TestSubscribeTakesASharedQueueUnderOnePolicy(t *testing.T) {
	t.Parallel()

	queue := uniqueName("promise")
	c := setup{Queue: queue, Handler: failing(1)}
	c.Options.Policies = retries(ms(50)...)
	// the same, in other words
	c.Options.Policies.Topics = map[string]config.Policy{"other": {Retries: 1, Delays: ms(50)}}
	c.Configure = func(conf *amqp.Config) { conf.Queue.GenerateName = func(string) string { return queue } }
	c.Route = func(svc *service) {
		svc.Router.AddConsumerHandler("a", queue, svc.Sub, svc.recorded(failing(1)))
		svc.Router.AddConsumerHandler("b", "other", svc.Sub, svc.recorded(failing(1)))
	}
	svc := start(t, c)
	svc.publish("1", "2", "3", "4")
	await.Until(t, func() bool { return svc.Calls.count() == 8 }, "each fails once and succeeds")
	for id := range svc.Calls.ids() {
		assert.Equal(t, []int{1, 2}, svc.Calls.attempts(id))
	}
}

// Two retriers in one router, one inside of the other: each has its own messages and leaves the
// other's alone.
func TestTwoRetriersInOneRouter(t *testing.T) {
	t.Parallel()

	for name, swapped := range map[string]bool{"first outside": false, "second outside": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			uri := brokertest.URI(t)
			queues := []string{uniqueName("a"), uniqueName("b")}
			retrying := setup{Delays: ms(40, 50), URI: uri, Queue: queues[0]}
			first := newService(t, withRoute(retrying, func(*service) {}))

			second := setup{URI: uri, Queue: queues[1]}
			second.Options.Policies = config.Policies{Default: config.Policy{Mode: config.ModeDeadLetter}}
			svc := newService(t, withRoute(second, func(svc *service) {
				bare(t, svc)
			}))

			// newService has put the second one's middleware into the router that was replaced;
			// here are both.
			middlewares := []message.HandlerMiddleware{first.Retrier.Middleware, svc.Retrier.Middleware}
			if swapped {
				middlewares[0], middlewares[1] = middlewares[1], middlewares[0]
			}
			svc.Router.AddMiddleware(middlewares...)
			svc.Router.AddConsumerHandler("a", queues[0], first.Sub, first.recorded(failing(9)))
			svc.Router.AddConsumerHandler("b", queues[1], svc.Sub, svc.recorded(failing(9)))
			svc.run()

			first.publish("1")
			svc.publish("2")
			a := svc.Broker.Take(queues[0]+".dlq", 1)
			b := svc.Broker.Take(queues[1]+".dlq", 1)
			assert.Equal(t, map[string]string{"1": "exhausted"}, reasons(a))
			assert.Equal(t, map[string]string{"2": "exhausted"}, reasons(b))
			assert.Equal(t, []int{1, 2, 3}, first.Calls.attempts("1"))
			assert.Equal(t, []int{1}, svc.Calls.attempts("2"))
			assert.Equal(t, queues[0], rabbit.Text(a[0], header.Queue))
			assert.Equal(t, queues[1], rabbit.Text(b[0], header.Queue))
			assert.Len(t, historyOf(t, a[0]), 3, "each failure was counted once")
			await.Until(t, func() bool { return len(first.Letters()) > 0 && len(svc.Letters()) > 0 },
				"the dead letters are confirmed")
			assert.Len(t, first.Letters(), 1)
			assert.Len(t, svc.Letters(), 1)
		})
	}
}

func withRoute(c setup, route func(*service)) setup {
	c.Route = route
	return c
}

// With the retrier's own subscriber a wrong order is reported as with the stock one, and loses no
// message: what Watermill's Retry does inside is one attempt.
func TestMiddlewareOrderOnTheOwnSubscriber(t *testing.T) {
	t.Parallel()

	tries := 0
	c := setup{Delays: ms(40)}
	c.Route = func(svc *service) {
		immediate := routermiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}.Middleware
		bare(t, svc, immediate, svc.Retrier.Middleware, immediate)
		svc.Router.AddConsumerHandler("handler", svc.Queue, svc.Sub, svc.recorded(func(*message.Message) error {
			tries++
			return errors.New("always")
		}))
	}
	svc := start(t, c)
	svc.publish("1")

	dead := svc.Broker.Take(svc.dlq(), 1)[0]
	assert.Equal(t, "2", rabbit.Text(dead, header.Attempts))
	assert.Equal(t, 6, tries, "three immediate ones in each attempt, none by the Retry outside")
	reported := svc.Logs.with("A middleware is in the wrong place")
	require.Len(t, reported, 1)
	assert.ErrorContains(t, reported[0].Err, "Retry is added before")
	assert.Equal(t, "error", reported[0].Level)
	assert.Equal(t, "handler", reported[0].Fields["handler_name"])
}

// An exclusive consumer keeps others away, and is refused where it would keep itself away.
func TestExclusiveConsumer(t *testing.T) {
	t.Parallel()

	c := setup{Handler: failing(1)}
	c.Configure = func(conf *amqp.Config) { conf.Consume.Exclusive = true }
	svc := start(t, c)
	svc.publish("1")
	await.Until(t, func() bool { return svc.Calls.count() == 2 }, "it works")

	err := svc.Broker.Try(func(ch *amqp091.Channel) error {
		_, err := ch.Consume(svc.Queue, "", false, false, false, false, nil)
		return err
	})
	refused := errorAs[*amqp091.Error](t, err)
	assert.Equal(t, amqp091.AccessRefused, refused.Code)
}

// Topics that share a queue have an exchange each: all of them are declared.
func TestTopicsThatShareAQueue(t *testing.T) {
	t.Parallel()

	uri, queue := brokertest.URI(t), uniqueName("common")
	topics := []string{uniqueName("topic"), uniqueName("topic")}
	retrier := newRetrier(t, amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameConstant(queue)), noOptions())
	sub := must(retrier.NewSubscriber())(t)
	broker := newRabbit(t, uri)
	t.Cleanup(func() {
		broker.Remove(topics[1])
		broker.Remove(topics[0])
		broker.Remove(queue+".retry", queue, queue+".retry.1s", queue+".retry.5s", queue+".retry.30s", queue+
			".retry.2m", queue+".retry.10m", queue+".dlq")
	})
	for _, topic := range topics {
		require.NoError(t, sub.SubscribeInitialize(topic))
		broker.PublishTo(topic, "", amqp091.Publishing{Body: []byte(topic)})
	}
	assert.Equal(t, 2, broker.Depth(queue))
}
