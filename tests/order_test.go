package tests

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
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
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/middleware/tracing"
	"github.com/amqpretry/watermill-retry/retry"
)

// A wrong order of middlewares is refused: at the start with the plugin, else with the first
// message.

func watermillsDeduplicator() message.HandlerMiddleware {
	seen, err := wmmiddleware.NewMapExpiringKeyRepository(time.Minute)
	if err != nil {
		panic(err)
	}

	// What is left out here, each handler sets when the router starts, all at the same time.
	return (&wmmiddleware.Deduplicator{KeyFactory: wmmiddleware.NewMessageHasherAdler32(math.MaxInt64),
		Repository: seen, Timeout: 5 * time.Millisecond}).Middleware
}

// users is a middleware that somebody has made himself, with a name like Watermill's.
type users struct{}

func (users) Deduplicator(h message.HandlerFunc) message.HandlerFunc { return h }

func stockOf(t *testing.T, conf amqp.Config) message.Subscriber {
	t.Helper()
	subscriber := must(amqp.NewSubscriber(conf, watermill.NopLogger{}))(t)
	t.Cleanup(func() { _ = subscriber.Close() })

	return subscriber
}

func TestCheckRouter(t *testing.T) {
	t.Parallel()

	uri := brokertest.URI(t)
	logs := newLogs(t)
	policies := config.Policies{Topics: map[string]config.Policy{"off": {Mode: config.ModeOff}}}
	strict := newRetrier(t, amqp.NewDurableQueueConfig(uri), amqpretry.Options{Logger: logs, Policies: policies})
	lenient := newRetrier(t, amqp.NewDurableQueueConfig(uri), amqpretry.Options{
		Logger: logs, Policies: policies, MiddlewareOrder: middleware.OrderLog,
	})
	own, err := strict.NewSubscriber()
	require.NoError(t, err)
	lenientOwn := must(lenient.NewSubscriber())(t)
	letters := must(strict.NewDeadLetterSubscriber())(t)
	stock, foreign := stockOf(t, strict.Config()), stockOf(t, amqp.NewDurableQueueConfig(uri))
	poisonQueue, err := wmmiddleware.PoisonQueue(gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}),
		"poison")
	require.NoError(t, err)
	retry := wmmiddleware.Retry{}.Middleware
	traced := must(tracing.New(tracing.Config{}))(t)

	type chain = []message.HandlerMiddleware
	for name, test := range map[string]struct {
		retrier    ownRetrier
		topic      string
		subscriber message.Subscriber
		router     chain // level
		handler    chain
		refused    []string
		logged     int
	}{
		"right": {strict, "", own, chain{strict.Middleware, retry, users{}.Deduplicator},
			chain{wmmiddleware.Recoverer}, nil, 0},
		"Deduplicator by attempt": {strict, "", own,
			chain{strict.Middleware, protect.ByAttempt(wmmiddleware.Deduplicator{})}, nil, nil, 0},
		"protect's outside": {strict, "", own, chain{protect.ByAttempt(wmmiddleware.Deduplicator{}),
			strict.Middleware}, nil, []string{"package protect is added before"}, 0},
		"protect's Transactional outside": {strict, "", own, chain{(&protect.Transactional{}).Middleware,
			strict.Middleware}, nil, []string{"package protect is added before"}, 0},
		"tracing outside": {strict, "", own, chain{traced.Middleware, strict.Middleware}, nil,
			[]string{"package tracing is added before"}, 0},
		"tracing inside":     {strict, "", own, chain{strict.Middleware, traced.Middleware}, nil, nil, 0},
		"users' own outside": {strict, "", own, chain{users{}.Deduplicator, strict.Middleware}, nil, nil, 0},
		"Deduplicator far inside": {strict, "", own, chain{strict.Middleware, users{}.Deduplicator},
			chain{watermillsDeduplicator()}, []string{"Deduplicator is added after"}, 0},
		"on the stock subscriber": {strict, "", stock, chain{watermillsDeduplicator(), strict.Middleware}, nil,
			[]string{"Deduplicator is added before"}, 0},
		"several": {strict, "", own, chain{retry, poisonQueue, strict.Middleware}, nil,
			[]string{"Retry is added before", "PoisonQueue is added before"}, 0},
		"ours is the handler's": {strict, "", own, chain{retry}, chain{strict.Middleware},
			[]string{"Retry is added before"}, 0},
		"PoisonQueue may be meant": {strict, "", own, chain{strict.Middleware, poisonQueue}, nil, nil, 1},
		"InstantAck inside, own": {strict, "", own, chain{strict.Middleware, wmmiddleware.InstantAck}, nil,
			nil, 0},
		"InstantAck inside, stock": {strict, "", stock, chain{strict.Middleware, wmmiddleware.InstantAck}, nil,
			[]string{"InstantAck is added after"}, 0},
		"none of ours": {strict, "", own, chain{retry, wmmiddleware.Recoverer}, nil,
			[]string{"has no retry middleware"}, 0},
		"none of ours, stock": {strict, "", stock, nil, nil, []string{"has no retry middleware"}, 0},
		"one that may have ours": {strict, "", own, chain{func(h message.HandlerFunc) message.HandlerFunc {
			return h
		}}, nil, nil, 0},
		"by hand":    {strict, "", own, chain{middleware.Retry{}.Middleware}, nil, nil, 0},
		"policy off": {strict, "off", own, chain{watermillsDeduplicator()}, nil, nil, 0},
		"another Pub/Sub": {strict, "", gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}),
			chain{watermillsDeduplicator(), strict.Middleware}, nil, nil, 0},
		"a stock one that is not ours": {strict, "", foreign, chain{watermillsDeduplicator()}, nil, nil, 0},
		"another retrier's": {strict, "", lenientOwn, chain{watermillsDeduplicator(), lenient.Middleware},
			nil, nil, 0},
		"dead letters": {strict, "", letters, chain{watermillsDeduplicator()}, nil, nil, 0},
		"only logged": {lenient, "", lenientOwn, chain{watermillsDeduplicator(), retry, lenient.Middleware}, nil,
			nil, 2},
	} {
		t.Run(name, func(t *testing.T) { // one after the other: they share the logs
			router := newRouter(t, watermill.NopLogger{}, test.router...)
			topic := test.topic
			if topic == "" {
				topic = uniqueName("order")
			}
			router.AddConsumerHandler("ship", topic, test.subscriber, succeed).AddMiddleware(test.handler...)

			before := len(logs.with("A middleware is in the wrong place"))
			err := test.retrier.CheckRouter(router)
			assert.Equal(t, test.logged, len(logs.with("A middleware is in the wrong place"))-before)
			if test.refused == nil {
				assert.NoError(t, err)
				return
			}
			var lines []string
			if err != nil {
				lines = strings.Split(err.Error(), "\n")
			}
			require.Len(t, lines, len(test.refused))
			for i, part := range test.refused {
				assert.Contains(t, lines[i], part)
				assert.Contains(t, lines[i], `handler "ship"`)
			}
		})
	}
}

// Somebody who puts the middleware around a handler by hand has none in the router, and has not
// forgotten it.
func TestCheckRouterKnowsWhoWrapsByHand(t *testing.T) {
	t.Parallel()

	retrier := newRetrier(t, amqp.NewDurableQueueConfig(brokertest.URI(t)),
		amqpretry.Options{Logger: watermill.NopLogger{}})
	own := must(retrier.NewSubscriber())(t)
	router := newRouter(t, watermill.NopLogger{})
	nothing := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	router.AddHandler("ship", uniqueName("order"), own, "out", gochannel.NewGoChannel(gochannel.Config{},
		watermill.NopLogger{}), nothing)

	missing := errorAs[*middleware.NoMiddlewareError](t, retrier.CheckRouter(router))
	assert.Equal(t, "ship", missing.Handler)
	_ = retrier.Middleware(nothing)
	assert.NoError(t, retrier.CheckRouter(router))
}

// With the plugin a router does not start: nothing was declared, nothing consumed.
func TestCheckRouterKeepsARouterFromStarting(t *testing.T) {
	t.Parallel()

	svc := newService(t, setup{Handler: byFate})
	svc.Router.AddMiddleware(watermillsDeduplicator())
	svc.Router.AddPlugin(svc.Retrier.CheckRouter)

	err := svc.Router.Run(t.Context())
	mistake := errorAs[*middleware.OrderError](t, err)
	assert.Equal(t, "Watermill's Deduplicator", mistake.Middleware)
	assert.Equal(t, svc.Queue, mistake.Topic)
	assert.Equal(t, -1, svc.Broker.Depth(svc.Queue))
}

// Without the plugin a subscription that would lose messages stops with its first one, which no
// handler sees and nobody loses.
func TestSubscriptionThatWouldLoseMessagesStops(t *testing.T) {
	t.Parallel()

	each(t, map[string]func(*service) []message.HandlerMiddleware{
		"added before": func(svc *service) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{watermillsDeduplicator(), svc.Retrier.Middleware}
		},
		"added after": func(svc *service) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{svc.Retrier.Middleware, watermillsDeduplicator()}
		},
		"added before, where errors are swallowed": func(svc *service) []message.HandlerMiddleware {
			swallow := func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					_, _ = h(msg)
					return nil, nil
				}
			}

			return []message.HandlerMiddleware{swallow, watermillsDeduplicator(), svc.Retrier.Middleware}
		},
	}, func(t *testing.T, name string, chain func(*service) []message.HandlerMiddleware) {
		c := setup{QueueType: "quorum", Options: amqpretry.Options{Concurrency: 4}}
		c.Route = func(svc *service) {
			bare(t, svc, chain(svc)...)
			svc.Router.AddConsumerHandler("ship", svc.Queue, svc.Sub, svc.recorded(byFate))
		}
		svc := newService(t, c)
		ended := make(chan error, 1)
		go func() { ended <- svc.Router.Run(context.Background()) }()
		<-svc.Router.Running()
		ids := rabbit.Numbered("never", 20)
		svc.publish(ids...)

		await.Closed(t, ended, "the router, which has no other handler")
		assert.Zero(t, svc.Calls.count(), "handler calls")
		stops := svc.Logs.with("Stopped the subscription")
		require.Len(t, stops, 1)
		require.ErrorContains(t, stops[0].Err, "Watermill's Deduplicator is "+strings.Split(name, ",")[0])
		require.ErrorContains(t, stops[0].Err, "protect.Deduplicator")
		assert.Len(t, svc.Logs.with("A middleware is in the wrong place"), 1)
		svc.close()
		assert.Len(t, svc.Broker.Take(svc.Queue, 20), 20, "all messages are in their queue")
	})
}

// InstantAck has acknowledged a message before the retry middleware sees it: that one is handled,
// as nobody gives it back, and no other.
func TestSubscriptionBehindInstantAckStops(t *testing.T) {
	t.Parallel()

	c := setup{URI: brokertest.URI(t)}
	c.Route = func(svc *service) {
		bare(t, svc, wmmiddleware.InstantAck, func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				// Until the consumer has acknowledged it, which it tells by the context.
				<-msg.Context().Done()
				return h(msg)
			}
		}, svc.Retrier.Middleware)
		svc.Router.AddConsumerHandler("ship", svc.Queue, svc.Sub, svc.recorded(byFate))
	}
	svc := newService(t, c)
	ended := make(chan error, 1)
	go func() { ended <- svc.Router.Run(context.Background()) }()
	<-svc.Router.Running()
	svc.publish("ok")
	await.Closed(t, ended, "the router")
	assert.Equal(t, 1, svc.Calls.count())
	stops := svc.Logs.with("Stopped the subscription")
	require.Len(t, stops, 1)
	require.ErrorContains(t, stops[0].Err, "InstantAck is added before")
	svc.publish("ok-2")
	await.Stays(t, 300*time.Millisecond, func() bool { return svc.Broker.Depth(svc.Queue) == 1 }, "nobody consumes")
}

// With OrderLog the subscription goes on, and loses the message.
func TestOrderLogOnlyLogs(t *testing.T) {
	t.Parallel()

	c := setup{Options: amqpretry.Options{MiddlewareOrder: middleware.OrderLog}}
	c.Route = func(svc *service) {
		bare(t, svc, svc.Retrier.Middleware, watermillsDeduplicator())
		svc.Router.AddPlugin(svc.Retrier.CheckRouter)
		svc.Router.AddConsumerHandler("ship", svc.Queue, svc.Sub, svc.recorded(byFate))
	}
	svc := start(t, c)
	svc.publish("never")
	await.Until(t, func() bool {
		return len(svc.Events(retry.EventSucceeded)) == 1
	}, "its retry is taken for a success")
	assert.Equal(t, 1, svc.Calls.count())
	assert.NotEmpty(t, svc.Logs.with("A middleware is in the wrong place"))
	assert.Empty(t, svc.Logs.with("Stopped the subscription"))
}

// A deadline that a middleware outside has set, as Watermill's Timeout does, ends no copy: on a
// stock subscriber each failure made several, and one that came too late made the message spin.
func TestStock_DeadlineOutside(t *testing.T) {
	t.Parallel()

	c := setup{QueueType: "quorum", Delays: ms(50)}
	c.Route = func(svc *service) {
		bare(t, svc, wmmiddleware.Timeout(20*time.Millisecond), svc.Retrier.Middleware)
		require.NoError(t, svc.Sub.Close())
		svc.Router.AddConsumerHandler("ship", svc.Queue, stockOf(t, svc.Retrier.Config()),
			svc.recorded(func(msg *message.Message) error {
				<-msg.Context().Done()
				return errors.New("too slow")
			}))
	}
	svc := start(t, c)
	svc.publish("1")
	svc.Broker.Take(svc.dlq(), 1)
	svc.publish("2")
	svc.Broker.Take(svc.dlq(), 1)
	assert.Equal(t, []int{1, 2}, svc.Calls.attempts("1"))
	assert.Equal(t, []int{1, 2}, svc.Calls.attempts("2"))
	assert.Zero(t, svc.Broker.Depth(svc.dlq()), "further copies")
}

// Watermill's InstantAck outside of the retry middleware loses messages on a stock subscriber, and
// may on the retrier's own. Both are told of it in the same words.
func TestInstantAckOutside(t *testing.T) {
	t.Parallel()

	each(t, map[string]bool{"retrier": true, "stock": false}, func(t *testing.T, _ string, own bool) {
		svc := newService(t, setup{Options: amqpretry.Options{MiddlewareOrder: middleware.OrderLog}})
		bare(t, svc, wmmiddleware.InstantAck, svc.Retrier.Middleware)
		var subscriber message.Subscriber = svc.Sub
		if !own {
			subscriber = must(amqp.NewSubscriber(svc.Retrier.Config(), svc.Logs))(t)
		}
		patience := await.Bound // a stock subscriber ends the context once it has acknowledged
		if own {
			patience = 50 * time.Millisecond // the retrier's own may wait for the handler
		}
		fails := func(msg *message.Message) error {
			select {
			case <-msg.Context().Done():
			case <-time.After(patience):
			}
			return errors.New("failed")
		}
		svc.Router.AddConsumerHandler(uniqueName("handler"), svc.Queue, subscriber, svc.recorded(fails))
		svc.run()
		ids := rabbit.Numbered("message", 3)
		svc.publish(ids...)

		if own {
			lost := func() int { return len(svc.Logs.with("Handler returned error")) }
			await.Until(t, func() bool {
				return len(svc.Letters())+lost() == len(ids)
			}, "all have failed twice, or were lost and told of")
		} else {
			await.Until(t, func() bool {
				return len(svc.Logs.with("Handler returned error")) == len(ids)
			}, "all have failed")
			svc.close()
			assert.Equal(t, len(ids), svc.Calls.count())
			assert.Empty(t, svc.Events(retry.EventRetried))
			assert.Zero(t, svc.Broker.Depth(svc.Queue), "lost")
			assert.Zero(t, svc.Broker.Depth(svc.dlq()), "lost")
		}
		logged := svc.Logs.with("A middleware is in the wrong place")
		require.NotEmpty(t, logged)
		assert.ErrorContains(t, logged[0].Err, "a stock subscriber loses those that fail, and the retrier's "+
			"own may lose them")
		svc.close()
	})
}

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
			await.Until(t, func() bool { return len(first.Letters()) > 0 && len(svc.Letters()) > 0 }, "confirmed")
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
		immediate := wmmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}.Middleware
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

// A queue that somebody else has for himself is no matter of permissions: the error says so, and
// how to find out who it is.
func TestExclusiveToSomebodyElse(t *testing.T) {
	t.Parallel()

	type row struct {
		there     func(*amqp091.Channel, string) error // what somebody else does first
		exclusive bool                                 // what the retrier wants
		owned     bool
		says      string
	}
	each(t, map[string]row{
		"an exclusive consumer": {there: consumes(true), says: "rabbitmqctl list_consumers -p '/'"},
		"a consumer, and an exclusive one is wanted": {there: consumes(false), exclusive: true,
			says: "have neither consume exclusively"},
		"an exclusive queue": {owned: true, says: "rabbitmqctl list_queues -p '/' name owner_pid",
			there: func(ch *amqp091.Channel, queue string) error {
				_, err := ch.QueueDeclare(queue, true, false, true, false, nil)
				return err
			}},
	}, func(t *testing.T, _ string, c row) {
		uri, queue := brokertest.URI(t), uniqueName("exclusive")
		broker := newRabbit(t, uri)
		t.Cleanup(func() { broker.Remove(queue+".retry", queue, queue+".retry.200ms", queue+".dlq") })
		conf := plainConfig(uri, "classic") // quorum queues take any number of exclusive consumers
		conf.Consume.Exclusive = c.exclusive
		retrier := newRetrier(t, conf, amqpretry.Options{Policies: retries(ms(200)...)})
		sub := must(retrier.NewSubscriber())(t)
		if !c.owned {
			require.NoError(t, sub.SubscribeInitialize(queue))
		}
		require.NoError(t, c.there(newRabbit(t, uri).Channel(), queue))

		_, err := sub.Subscribe(t.Context(), queue)
		exclusive := errorAs[*topology.ExclusiveError](t, err)
		t.Log(err)
		assert.Equal(t, []any{queue, "/", c.owned}, []any{exclusive.Queue, exclusive.VirtualHost, exclusive.Owned})
		assert.ErrorContains(t, err, c.says)
		assert.NotContains(t, err.Error(), "permission")
		assert.NotContains(t, err.Error(), "grant")
	})
}

func consumes(exclusively bool) func(*amqp091.Channel, string) error {
	return func(ch *amqp091.Channel, queue string) error {
		_, err := ch.Consume(queue, "", false, exclusively, false, false, nil)
		return err
	}
}
