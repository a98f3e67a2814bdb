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
	routermiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/middleware/tracing"
	"github.com/amqpretry/watermill-retry/retry"
)

// A wrong order of middlewares is refused: at the start with the plugin, else with the first
// message.

func watermillsDeduplicator() message.HandlerMiddleware {
	return (&routermiddleware.Deduplicator{KeyFactory: routermiddleware.NewMessageHasherAdler32(math.MaxInt64)}).
		Middleware
}

// users is a middleware that somebody has made himself, with a name like Watermill's.
type users struct{}

func (users) Deduplicator(h message.HandlerFunc) message.HandlerFunc { return h }

// stockOf connects a stock subscriber, which the test closes.
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
	poisonQueue, err := routermiddleware.PoisonQueue(gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}),
		"poison")
	require.NoError(t, err)
	retry := routermiddleware.Retry{}.Middleware
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
			chain{routermiddleware.Recoverer}, nil, 0},
		"Deduplicator by attempt": {strict, "", own,
			chain{strict.Middleware, protect.ByAttempt(routermiddleware.Deduplicator{})}, nil, nil, 0},
		"protect's outside": {strict, "", own, chain{protect.ByAttempt(routermiddleware.Deduplicator{}),
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
		"InstantAck inside, own": {strict, "", own, chain{strict.Middleware, routermiddleware.InstantAck}, nil,
			nil, 0},
		"InstantAck inside, stock": {strict, "", stock, chain{strict.Middleware, routermiddleware.InstantAck}, nil,
			[]string{"InstantAck is added after"}, 0},
		"none of ours": {strict, "", own, chain{retry, routermiddleware.Recoverer}, nil,
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
		bare(t, svc, routermiddleware.InstantAck, func(h message.HandlerFunc) message.HandlerFunc {
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
		bare(t, svc, routermiddleware.Timeout(20*time.Millisecond), svc.Retrier.Middleware)
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
