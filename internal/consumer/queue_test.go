package consumer

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/internal/testkit/hostile"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

func TestOddHeadersNeverPanic(t *testing.T) {
	queue := testSource(config.Policy{})

	rapid.Check(t, func(t *rapid.T) {
		d := hostile.AnyDelivery(4).Draw(t, "delivery")
		for _, key := range []string{"x-death", "x-delivery-count", "CC", header.Version, header.Queue, header.Count,
			header.Delay} {
			if rapid.Bool().Draw(t, key) {
				d.Headers[key] = hostile.AnyField(2).Draw(t, "value")
			}
		}

		a := queue.arrive(&d, time.Now(), broker{}, watermill.NopLogger{})
		require.Equal(t, "orders", a.State.Queue)
		require.Zero(t, a.State.Count, "no chance value is trusted")
	})
}

func testSource(policy config.Policy) Queue {
	return Queue{
		Topic: "topic", Name: "orders", Policy: policy.WithDefaults(), Names: topology.Names{}.WithDefaults(),
	}
}

func TestArrive(t *testing.T) {
	state := func(count, delay string) amqp091.Table {
		return amqp091.Table{
			header.Version: "1", header.Queue: "orders", header.Count: count, header.Delay: delay, header.Attempts: "4",
		}
	}
	and := func(h amqp091.Table, key string, value any) amqp091.Table {
		h[key] = value
		return h
	}
	died := func(queue string) []any { return []any{amqp091.Table{"queue": queue}} }

	now := time.Now()
	arrival := func(s wire.State) engine.Arrival {
		s.Queue = "orders"
		return engine.Arrival{State: s}
	}
	fresh := arrival(wire.State{})
	replay, crash := arrival(wire.State{Attempts: 4, Replays: 1}), fresh
	replay.Replay = true
	crash.Crash = errors.New("delivered 10 times without an acknowledgement; the policy's CrashLimit is 10")
	for name, test := range map[string]struct {
		headers amqp091.Table
		want    engine.Arrival
	}{
		"fresh": {nil, fresh},
		"from the quorum queue": {and(state("2", "30s"), "x-death", died("orders.retry.30s")),
			arrival(wire.State{Count: 2, Delay: "30s", Attempts: 4})},
		"from the classic": {and(state("2", "30s"), "x-death", died("orders.retry.30s.classic")),
			arrival(wire.State{Count: 2, Delay: "30s", Attempts: 4})},
		"a delay of the past": {and(state("2", "77h"), "x-death", died("orders.retry.77h")),
			arrival(wire.State{Count: 2, Delay: "77h", Attempts: 4})},
		"a delay of nobody":  {and(state("2", "60s"), "x-death", died("orders.retry.60s")), fresh},
		"other queue":        {and(state("2", "30s"), "x-death", died("other.retry.30s")), fresh},
		"passed on":          {state("2", "30s"), fresh},
		"replay":             {state("-1", ""), replay},
		"clamped":            {state("99", ""), arrival(wire.State{Count: 5, Attempts: 4})},
		"delivered 9 times":  {amqp091.Table{"x-delivery-count": int64(9)}, fresh},
		"delivered 10 times": {amqp091.Table{"x-delivery-count": int64(10)}, crash},
	} {
		t.Run(name, func(t *testing.T) {
			test.want.State.Since = now // it has no timestamp
			queue := testSource(config.Policy{})
			d := &amqp091.Delivery{Headers: test.headers, Redelivered: true}
			assert.Equal(t, test.want, queue.arrive(d, now, broker{}, watermill.NopLogger{}))

			off := testSource(config.Policy{Mode: config.ModeOff})
			assert.Zero(t, off.arrive(&amqp091.Delivery{Headers: test.headers}, now, broker{}, watermill.NopLogger{}))
		})
	}
}

func TestArriveHonoursTheCrashLimit(t *testing.T) {
	queue := testSource(config.Policy{CrashLimit: 3})

	for count, want := range map[int64]bool{0: false, 2: false, 3: true, 4: true, -1: false} {
		d := &amqp091.Delivery{Headers: amqp091.Table{"x-delivery-count": count}, Redelivered: true}
		assert.Equal(t, want, queue.arrive(d, time.Now(), broker{}, watermill.NopLogger{}).Crash != nil, count)

		d.Redelivered = false
		assert.NoError(t, queue.arrive(d, time.Now(), broker{}, watermill.NopLogger{}).Crash,
			"%d, given by a publisher", count)
	}
}

func TestArriveLogsUnknownVersions(t *testing.T) {
	logger := watermill.NewCaptureLogger()
	d := &amqp091.Delivery{Headers: amqp091.Table{header.Version: []any{int64(2)}, header.Queue: "orders",
		header.Count: "1"}}

	now, queue := time.Now(), testSource(config.Policy{})
	assert.Equal(t, engine.Arrival{State: wire.State{Queue: "orders", Since: now}, Unknown: true},
		queue.arrive(d, now, broker{}, logger))

	logged := logger.Captured()[watermill.InfoLogLevel]
	require.Len(t, logged, 1)
	assert.Equal(t, watermill.LogFields{"amqp_queue_name": "orders", "version": "[2]"}, logged[0].Fields)
}

func TestIsRetryQueue(t *testing.T) {
	queue := testSource(config.Policy{})
	assert.True(t, queue.isRetryQueue("orders.retry.1500ms", "1500ms"))
	assert.False(t, queue.isRetryQueue("orders.retry.1500ms", "1s"))
	assert.False(t, queue.isRetryQueue("orders.retry.", ""), "not a delay")
	assert.False(t, queue.isRetryQueue("orders.retry.1.5s", "1.5s"), "not spelled canonically")

	queue.Names.RetryQueue = func(p topology.RetryQueueParams) string { return p.Delay + "/" + p.Queue }
	assert.True(t, queue.isRetryQueue("2h/orders", "2h"), "names are the user's")
	assert.False(t, queue.isRetryQueue("orders.retry.2h", "2h"))
}

func TestDelaysOfPoliciesAreRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		delay := time.Duration(rapid.Int64Range(1, 315_360_000_000).Draw(t, "ms")) * time.Millisecond
		text := config.FormatDelay(delay)
		queue := testSource(config.Policy{})
		require.True(t, queue.isRetryQueue("orders.retry."+text, text))
	})
}

// A native retry that nothing has delayed waits by a copy, and so do all after it. Other
// broker-driven strategies have no other way.
func TestEarlyReturnsBecomeCopies(t *testing.T) {
	for strategy, copies := range map[config.Strategy]bool{
		config.StrategyNative: true, config.StrategyRedelivery: false,
	} {
		policy := config.Policy{Strategy: strategy, Delays: []time.Duration{time.Hour}, Retries: 5}
		s := testSource(policy)
		plan, err := topology.New("orders", policy, topology.Names{})
		require.NoError(t, err)
		s.Forwarder = publish.NewForwarder(publish.ForwarderSettings{
			Connection: connection.Settings{Emit: func(retry.Event) {}}, Logger: watermill.NopLogger{},
		}).ForQueue(plan)
		returned := func(id string, count int64) *amqp091.Delivery {
			return &amqp091.Delivery{MessageId: id, Redelivered: true,
				Headers: amqp091.Table{"x-delivery-count": count}}
		}
		arrive := func(d *amqp091.Delivery) engine.Arrival {
			return s.arrive(d, time.Now(), broker{version: "4.3.6"}, watermill.NopLogger{})
		}
		assert.False(t, arrive(returned("m", 1)).ByCopy, "nobody here has rejected it")
		s.Forwarder.Leaving(rejection(returned("m", 1), 1), time.Hour)
		early := arrive(returned("m", 1))
		assert.True(t, early.ByCopy)
		assert.Equal(t, time.Second, early.Pause)
		assert.WithinDuration(t, time.Now().Add(time.Hour), early.State.NotBefore, time.Minute)
		assert.False(t, early.State.LastFailure.IsZero())
		assert.Equal(t, copies, arrive(returned("other", 1)).ByCopy, strategy)
	}
}
