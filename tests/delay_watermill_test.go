package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	wmdelay "github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// These tests run Watermill's own parts, unchanged, with the delay publisher and the retrier's
// subscriber.

// The cases of Watermill's own test of its delay publisher, with the delays in effect.
func TestDelayPublish_WatermillsPublisher(t *testing.T) {
	t.Parallel()

	d := newDelays(t, amqp.NewDurableQueueConfig(brokertest.URI(t)), nil)
	d.declareLadder()
	topic := uniqueName("delayed")
	got := d.queue(topic)
	over := func(config wmdelay.PublisherConfig) message.Publisher {
		publisher := must(wmdelay.NewPublisher(d.Publisher, config))(t)

		return publisher
	}
	const step = 200 * time.Millisecond
	byDefault := func(wmdelay.DefaultDelayGeneratorParams) (wmdelay.Delay, error) {
		return wmdelay.For(step), nil
	}
	ours := d.Options
	ours.DefaultDelayGenerator = byDefault
	ourDefault := must(d.Retrier.NewDelayPublisher(d.Wrapped, ours))(t)
	pub, allow := over(wmdelay.PublisherConfig{}), over(wmdelay.PublisherConfig{AllowNoDelay: true})
	defaults := []message.Publisher{over(wmdelay.PublisherConfig{DefaultDelayGenerator: byDefault}), ourDefault}

	plain := func(id string) *message.Message { return message.NewMessage(id, nil) }
	inMetadata := func(delay time.Duration) func(string) *message.Message {
		return func(id string) *message.Message { return delayed(id, wmdelay.For(delay)) }
	}
	inContext := func(delay time.Duration) func(string) *message.Message {
		return func(id string) *message.Message {
			msg := message.NewMessage(id, nil)
			msg.SetContext(wmdelay.WithContext(context.Background(), wmdelay.For(delay)))

			return msg
		}
	}
	require.EqualError(t, pub.Publish(topic, plain("refused")), "message doesn't have a delay set")

	type published struct {
		at          time.Time
		delay, took time.Duration
		until       bool
	}
	all := map[string]published{}
	for i, test := range []struct {
		name       string
		publishers []message.Publisher
		message    func(id string) *message.Message
		delay      time.Duration
	}{
		{"no delay but allowed", []message.Publisher{allow, d.Publisher}, plain, 0},
		{"default delay", defaults, plain, step},
		{"delay from metadata", []message.Publisher{pub, d.Publisher}, inMetadata(2 * step), 2 * step},
		{"default delay override with metadata", defaults, inMetadata(2 * step), 2 * step},
		{"delay from context", []message.Publisher{pub, d.Publisher}, inContext(3 * step), 3 * step},
		{"default delay override with context", defaults, inContext(3 * step), 3 * step},
		{"delay with until", []message.Publisher{pub, d.Publisher}, func(id string) *message.Message {
			return delayed(id, wmdelay.Until(time.Now().UTC().Add(2*time.Second)))
		}, 2 * time.Second},
		{"both metadata and context set", append(defaults, d.Publisher), func(id string) *message.Message {
			msg := delayed(id, wmdelay.For(5*step))
			msg.SetContext(wmdelay.WithContext(context.Background(), wmdelay.For(6*step)))

			return msg
		}, 5 * step},
	} {
		for j, publisher := range test.publishers {
			id := fmt.Sprintf("%d %d %s", i, j, test.name)
			at := time.Now()
			require.NoError(t, publisher.Publish(topic, test.message(id)), id)
			all[id] = published{at, test.delay, time.Since(at), test.name == "delay with until"}
		}
	}
	arrived := got.wait(t, len(all))
	for id, one := range all {
		// A message is made just after the time that was noted.
		due(t, arrived[id], one.at.Add(one.delay))
		metadata := arrived[id].Metadata
		delayedFor, delayedUntil := metadata[wmdelay.DelayedForKey], metadata[wmdelay.DelayedUntilKey]
		if one.delay == 0 {
			assert.Empty(t, delayedFor+delayedUntil, id)
			continue
		}
		duration, err := time.ParseDuration(delayedFor)
		require.NoError(t, err, id)
		assert.LessOrEqual(t, duration, one.delay, id)
		if one.until { // what was left when the message was made
			assert.GreaterOrEqual(t, duration, one.delay-one.took, id)
		} else {
			assert.Equal(t, one.delay, duration, id)
		}
		until, err := time.Parse(time.RFC3339, delayedUntil)
		require.NoError(t, err, id)
		assert.False(t, until.Before(one.at.Add(one.delay).Truncate(time.Second)), id)
	}
	assert.Len(t, d.Wrapped.uuids.All(), 2, "those without a delay")
}

// Watermill's delayed requeue, as its SQL requeuer puts it together: DelayOnError, PoisonQueue with
// a topic of failed messages, in which they wait, and a requeuer.
func TestDelayPublish_Requeuer(t *testing.T) {
	t.Parallel()

	d := newDelays(t, amqp.NewDurableQueueConfig(brokertest.URI(t)), nil)
	topic, requeue := uniqueName("orders"), uniqueName("requeue")
	d.removeTopic(topic)
	d.removeTopic(requeue)
	logger := newLogs(t)
	router := newRouter(t, logger, d.Retrier.Middleware)
	poison := must(wmmiddleware.PoisonQueue(d.Publisher, requeue))(t)
	delays := wmmiddleware.DelayOnError{
		InitialInterval: 200 * time.Millisecond, MaxInterval: 500 * time.Millisecond, Multiplier: 2,
	}
	router.AddPlugin(d.Retrier.CheckRouter)
	subscriber := must(d.Retrier.NewSubscriber())(t)
	var s seen
	handler := router.AddConsumerHandler("orders", topic, subscriber, s.handler(func(msg *message.Message) error {
		if len(s.of(msg.UUID)) < 5 {
			return errFate
		}

		return nil
	}))
	// Timeout ends the message's context when the handler returns, before the message is published
	// again.
	handler.AddMiddleware(poison, delays.Middleware, wmmiddleware.Timeout(time.Minute))
	back := must(d.Retrier.NewSubscriber())(t)
	r := must(requeuer.NewRequeuer(requeuer.Config{
		Subscriber: back, SubscribeTopic: requeue, Publisher: d.Publisher, Router: router,
		GeneratePublishTopic: func(p requeuer.GeneratePublishTopicParams) (string, error) {
			return p.Message.Metadata.Get(wmmiddleware.PoisonedTopicKey), nil
		},
	}, logger))(t)
	runs(t, r.Run, router.Running(), router.Close)

	require.NoError(t, d.Publisher.Publish(topic, message.NewMessage("1", []byte("body"))))
	await.Until(t, func() bool { return len(s.of("1")) == 5 }, "it comes back until it succeeds")
	for i, wait := range ms(200, 400, 500, 500) {
		assert.GreaterOrEqual(t, gaps(s.of("1"))[i], wait-rounding, "never early")
	}
	last := s.of("1")[4]
	assert.Equal(t, "4", last.Metadata[requeuer.RetriesKey])
	assert.Equal(t, "500ms", last.Metadata[wmdelay.DelayedForKey])
	assert.Equal(t, errFate.Error(), last.Metadata[wmmiddleware.ReasonForPoisonedKey])
	await.Stays(t, 500*time.Millisecond, func() bool { return len(s.of("1")) == 5 }, "and then no more")
	assert.Equal(t, []string{"1"}, d.Wrapped.uuids.All(), "all others had a delay")
}

// Commands and events are delayed by the context that they are sent with.
func TestDelayPublish_CQRS(t *testing.T) {
	t.Parallel()

	uri, prefix := brokertest.URI(t), uniqueName("cqrs")
	topic := func(name string) string { return prefix + "." + name }
	commands := newDelays(t, amqp.NewDurableQueueConfig(uri), nil)
	events := newDelays(t, amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("mail")), nil)
	stock := newDelays(t, amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("stock")), nil)
	commands.removeTopic(topic("placeOrder"))
	events.removeTopic(topic("orderPlaced"))
	stock.removeTopic(topic("orderPlaced"))

	logger := newLogs(t)
	router := newRouter(t, logger, commands.Retrier.Middleware, events.Retrier.Middleware, stock.Retrier.Middleware)
	var mu sync.Mutex
	called := map[string]time.Time{}
	record := func(handler string) {
		mu.Lock()
		defer mu.Unlock()
		_, twice := called[handler]
		assert.False(t, twice, handler)
		called[handler] = time.Now()
	}
	processor := must(cqrs.NewCommandProcessorWithConfig(router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return topic(p.CommandName), nil
		},
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return commands.Retrier.NewSubscriber()
		},
		Marshaler: marshaler, Logger: logger,
	}))(t)
	require.NoError(t, processor.AddHandlers(cqrs.NewCommandHandler("place", func(context.Context, *placeOrder) error {
		record("place")
		return nil
	})))
	readers := map[string]*delays{"mail": events, "stock": stock}
	eventProcessor := must(cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return topic(p.EventName), nil
		},
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return readers[p.HandlerName].Retrier.NewSubscriber()
		},
		Marshaler: marshaler, Logger: logger,
	}))(t)
	for reader := range readers {
		require.NoError(t, eventProcessor.AddHandlers(cqrs.NewEventHandler(reader,
			func(context.Context, *orderPlaced) error {
				record(reader)
				return nil
			})))
	}
	runs(t, router.Run, router.Running(), router.Close)

	commandBus := must(cqrs.NewCommandBusWithConfig(commands.Publisher, cqrs.CommandBusConfig{
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) {
			return topic(p.CommandName), nil
		}, Marshaler: marshaler, Logger: logger,
	}))(t)
	eventBus := must(cqrs.NewEventBusWithConfig(events.Publisher, cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) {
			return topic(p.EventName), nil
		}, Marshaler: marshaler, Logger: logger,
	}))(t)
	now := time.Now()
	require.NoError(t, commandBus.Send(wmdelay.WithContext(t.Context(), wmdelay.For(800*time.Millisecond)),
		&placeOrder{ID: "1"}))
	require.NoError(t, eventBus.Publish(wmdelay.WithContext(t.Context(), wmdelay.For(1200*time.Millisecond)),
		&orderPlaced{ID: "1"}))
	times := func() map[string]time.Time {
		mu.Lock()
		defer mu.Unlock()
		all := map[string]time.Time{}
		for handler, at := range called {
			all[handler] = at
		}

		return all
	}
	await.Until(t, func() bool { return len(times()) == 3 }, "all are called")
	for handler, wait := range map[string]time.Duration{
		"place": 800 * time.Millisecond, "mail": 1200 * time.Millisecond, "stock": 1200 * time.Millisecond,
	} {
		assert.False(t, times()[handler].Before(now.Add(wait)), "%s is never early", handler)
	}
	assert.Empty(t, commands.Wrapped.uuids.All())
	assert.Empty(t, events.Wrapped.uuids.All())
}
