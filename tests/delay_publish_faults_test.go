package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	wmdelay "github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/delay"
	"github.com/amqpretry/watermill-retry/config/publish"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// What is wrong with one message of a call is found before any is published.
func TestDelayPublish_Refused(t *testing.T) {
	t.Parallel()

	d, topic, got := newDelayed(t, brokertest.URI(t), nil)
	with := func(key, value string) *message.Message {
		msg := message.NewMessage("bad", nil)
		msg.Metadata.Set(key, value)

		return msg
	}
	soon, never := wmdelay.For(time.Millisecond), wmdelay.Until(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC))
	for name, test := range map[string]struct {
		bad *message.Message
		as  any
	}{
		"no duration": {with(wmdelay.DelayedForKey, "soon"), new(*delay.MetadataError)},
		"no time":     {with(wmdelay.DelayedUntilKey, "tomorrow"), new(*delay.MetadataError)},
		"too long":    {delayed("bad", wmdelay.For(100*time.Second)), new(*delay.TooLongError)},
		"for ever":    {delayed("bad", never), new(*delay.TooLongError)},
		"too large": {func() *message.Message {
			msg := delayed("bad", soon)
			msg.Metadata["large"] = strings.Repeat("x", 128<<10)

			return msg
		}(), new(*publish.TooLargeError)},
		"too large for its consumers": {func() *message.Message { // with what the broker adds on the way
			msg := delayed("bad", soon)
			msg.Metadata["large"] = strings.Repeat("x", 128<<10-700)

			return msg
		}(), new(*publish.TooLargeError)},
		"a long key": {func() *message.Message {
			msg := delayed("bad", soon)
			msg.Metadata[strings.Repeat("k", 256)] = "x"

			return msg
		}(), new(*publish.TooLargeError)},
	} {
		err := d.Publisher.Publish(topic, delayed("good", soon), test.bad, delayed("good", soon),
			message.NewMessage("none", nil))
		require.ErrorAs(t, err, test.as, name)
		assert.ErrorContains(t, err, `cannot publish message "bad" to topic "`+topic+`": `, name)
	}
	assert.Empty(t, d.Wrapped.uuids.All())
	assert.LessOrEqual(t, d.Events(retry.EventDisconnected), 0, "no connection was lost over it")

	d.declareLadder()
	now := time.Now()
	require.NoError(t, d.Publisher.Publish(topic, delayed("longest", wmdelay.For(99900*time.Millisecond)),
		delayed("shortest", wmdelay.For(time.Nanosecond))))
	due(t, got.wait(t, 1)["shortest"], now) // behind all that was due before it: none of those was published

	_, err := d.Retrier.NewDelayPublisher(nil, delay.Options{Ladder: config.Ladder{Levels: 99}, PublishTimeout: -1})
	for _, path := range []string{"publisher: missing", "Options.Ladder.Levels: ", "Options.PublishTimeout: negative"} {
		assert.ErrorContains(t, err, path)
	}
}

// A message that the broker refuses for good does not take those with it that are published beside
// it.
func TestDelayPublish_RefusedForGood(t *testing.T) {
	t.Parallel()

	conf := amqp.NewDurableQueueConfig(brokertest.URI(t))
	conf.Marshaler = amqp.DefaultMarshaler{PostprocessPublishing: func(p amqp091.Publishing) amqp091.Publishing {
		if string(p.Body) == "bad" {
			p.UserId = "somebody-else"
		}

		return p
	}}
	d := newDelays(t, conf, nil)
	topic := uniqueName("delayed")
	got := d.queue(topic)
	d.publishes(topic, "first")
	var batch []*message.Message
	for i := range 100 {
		batch = append(batch, delayed(fmt.Sprint("good", i), wmdelay.For(300*time.Millisecond)))
	}
	batch[70] = delayed("bad", wmdelay.For(300*time.Millisecond))
	began := time.Now()
	err := d.Publisher.Publish(topic, batch...)
	refused := errorAs[*publish.RefusedError](t, err)
	assert.Equal(t, "bad", refused.UUID)
	assert.NotContains(t, err.Error(), "good")
	assert.Less(t, time.Since(began), 30*time.Second, "and not only at PublishTimeout, after two minutes")
	for _, msg := range batch {
		if msg.UUID != "bad" {
			await.Until(t, func() bool { return len(got.of(msg.UUID)) > 0 }, "%s arrives", msg.UUID)
		}
	}
	for _, msg := range batch {
		assert.LessOrEqual(t, len(got.of(msg.UUID)), 2, "once before it was found, and once after")
	}
}

// An operator deletes the ladder between two publishes: it is declared again, and no message is
// lost.
func TestDelayPublish_LadderDeleted(t *testing.T) {
	t.Parallel()

	d, topic, got := newDelayed(t, brokertest.URI(t), withOwnLadder)
	shared := d.Ladder.Shared()
	for i, remove := range []func(){
		func() {}, // the first time nothing is there
		func() { d.Broker.RemovePlan(shared) },
		func() { d.Broker.Remove("", d.Ladder.WaitQueue(0, 5)) }, // of the delay below: the publish is returned
		func() { d.Broker.Remove(d.Ladder.Level(0)) },            // an error closes the channel
		func() { d.Broker.RemovePlan(shared); d.Broker.Remove("", topic+".landing") },
	} {
		remove()
		uuid := fmt.Sprint(i)
		now := time.Now()
		require.NoError(t, d.Publisher.Publish(topic, delayed(uuid, wmdelay.For(450*time.Millisecond))))
		published := time.Now()
		dueAfter(t, got.wait(t, i+1)[uuid], now.Add(450*time.Millisecond), published)
	}
	assert.Equal(t, 4, d.Events(retry.EventTopologyRepaired))
	assert.Equal(t, 1, d.Events(retry.EventConnected)-1, "the subscriber's and one of the publisher's")
}

// An operator deletes the exchange of all targets. The first message of another topic brings it
// back, with the bindings of the topics that the publisher has used.
func TestDelayPublish_DeliveryDeleted(t *testing.T) {
	t.Parallel()

	d := newDelays(t, amqp.NewDurableQueueConfig(brokertest.URI(t)), withOwnLadder)
	used, other := uniqueName("delayed"), uniqueName("delayed")
	ofUsed, ofOther := d.queue(used), d.queue(other)
	d.publishes(used, "before")
	ofUsed.wait(t, 1)
	for wait := 6 * time.Second; ; wait *= 3 {
		uuid, published := "waits "+wait.String(), time.Now()
		require.NoError(t, d.Publisher.Publish(used, delayed(uuid, wmdelay.For(wait))))
		d.Broker.Remove(d.Ladder.Delivery())
		now := time.Now()
		require.NoError(t, d.Publisher.Publish(other, delayed(uuid, wmdelay.For(500*time.Millisecond))))
		back := time.Now()
		dueAfter(t, ofOther.first(t, uuid), now.Add(500*time.Millisecond), back)
		if back.After(published.Add(wait)) { // on a busy machine it takes long to declare all of it again
			require.Less(t, wait, 30*time.Second, "the exchange is back too late")
			await.Until(t, func() bool {
				return len(d.Broker.Drain(d.Ladder.Unroutable())) == 1 || len(ofUsed.of(uuid)) == 1
			}, "%s is out of the ladder", uuid)

			continue
		}
		due(t, ofUsed.first(t, uuid), published.Add(wait))
		assert.Zero(t, d.Broker.Depth(d.Ladder.Unroutable()))

		return
	}
}

// A process that has published nothing with a delay counts what waits in its ladder for others: a
// delay can outlive the process that asked for it.
func TestDelayPublish_DepthsOfOthers(t *testing.T) {
	t.Parallel()

	conf := amqp.NewDurableQueueConfig(brokertest.URI(t))
	others := newDelays(t, conf, withOwnLadder)
	quiet := newDelays(t, conf, func(o *delay.Options, _ *amqpretry.Options) { o.Ladder = others.Options.Ladder })
	depths, err := quiet.Retrier.QueueDepths(t.Context())
	require.NoError(t, err)
	assert.Empty(t, depths, "nobody has declared the ladder")

	topic := uniqueName("delayed")
	others.queue(topic)
	others.publishes(topic, "first")
	others.Broker.PublishTo(others.Ladder.Delivery(), "of.nobody", rabbit.Message("stray", "stray"))
	await.Until(t, func() bool {
		depths, err = quiet.Retrier.QueueDepths(t.Context())
		for _, q := range depths {
			if q.Role == retry.QueueRoleUnroutable && q.Messages == 1 {
				return true
			}
		}

		return false
	}, "it counts what no target takes")
	require.NoError(t, err)
	assert.Len(t, depths, len(others.Ladder.Shared().Queues))
}

// Where an operator provides the ladder, nothing is declared, also when a part of it is missing.
func TestDelayPublish_Assume(t *testing.T) {
	t.Parallel()

	conf := amqp.NewDurableQueueConfig(brokertest.URI(t))
	operator := newDelays(t, conf, nil)
	topic := uniqueName("delayed")
	got := operator.queue(topic)
	service := newDelays(t, conf, func(o *delay.Options, r *amqpretry.Options) {
		r.AssumeTopology, o.Ladder = true, operator.Options.Ladder
	})
	err := service.Publisher.Publish(topic, delayed("missing", wmdelay.For(400*time.Millisecond)))
	failed := errorAs[*publish.Error](t, err)
	assert.True(t, failed.Final)
	require.ErrorContains(t, err, `the landing queue is not provisioned; declare what topology.Definitions prints: queue "`+
		topic+`.landing": `)
	assert.Equal(t, -1, service.Broker.Depth(topic+".landing"))

	operator.publishes(topic, "operator")
	now := time.Now()
	require.NoError(t, service.Publisher.Publish(topic, delayed("there", wmdelay.For(400*time.Millisecond))))
	all := got.wait(t, 2)
	due(t, all["there"], now.Add(400*time.Millisecond))
	assert.Equal(t, 0, service.Events(retry.EventTopologyRepaired))
}

// hostileMarshaler publishes what a foreign publisher may: headers of the broker that were copied
// from another message.
type hostileMarshaler struct{ amqp.DefaultMarshaler }

func (m hostileMarshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	p, err := m.DefaultMarshaler.Marshal(msg)
	if err != nil {
		return p, err
	}
	p.Priority, p.Expiration, p.DeliveryMode, p.ReplyTo = 9, "20", amqp091.Transient, "amq.rabbitmq.reply-to"
	p.Headers["CC"] = []any{msg.Metadata["other"]}
	p.Headers["BCC"] = []any{msg.Metadata["other"]}
	p.Headers["x-death"] = []any{amqp091.Table{
		"queue": msg.Metadata["death"], "exchange": "", "reason": "expired", "count": int64(1),
		"routing-keys": []any{"x"}, "time": time.Now(),
	}}
	p.Headers["x-first-death-queue"], p.Headers["x-delivery-count"] = "x", int64(17)
	p.Headers["x-opt-delivery-time"] = int64(1) << 60
	p.Headers[header.Count], p.Headers[header.Queue] = "7", "x"
	p.Headers["kept"] = []any{int64(1), "two"}

	return p, nil
}

// Headers that a broker would believe, and properties that would end the wait early, are removed:
// the message comes when it is due, to its own queue.
func TestDelayPublish_HostilePublisher(t *testing.T) {
	t.Parallel()

	conf := amqp.NewDurableQueueConfig(brokertest.URI(t))
	conf.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum"}
	conf.Marshaler = hostileMarshaler{}
	d := newDelays(t, conf, withOwnLadder)
	topic, other := uniqueName("delayed"), uniqueName("other")
	d.removeTopic(topic)
	d.Broker.Declare(topic, conf.Queue.Arguments)
	d.Broker.Declare(other, nil)
	const n = 40 // more than a level has unconfirmed at a time
	now := time.Now()
	for _, after := range []time.Duration{800 * time.Millisecond, 2200 * time.Millisecond} {
		var batch []*message.Message
		for range n {
			msg := delayed("hostile", wmdelay.For(after))
			msg.Metadata["other"], msg.Metadata["death"] = other, d.Ladder.WaitQueue(0, 2)
			batch = append(batch, msg)
		}
		require.NoError(t, d.Publisher.Publish(topic, batch...))
	}
	taken := d.Broker.Take(topic, 2*n)
	assert.GreaterOrEqual(t, time.Since(now), 2200*time.Millisecond)
	for _, m := range taken {
		assert.Equal(t, []any{int64(1), "two"}, m.Headers["kept"])
		assert.LessOrEqual(t, m.Priority, uint8(4))
		assert.Equal(t, amqp091.Persistent, m.DeliveryMode)
		assert.Empty(t, m.ReplyTo)
		assert.NotContains(t, m.Headers, "x-opt-delivery-time")
		assert.NotContains(t, m.Headers, "CC")
		assert.NotContains(t, m.Headers, "BCC")
		assert.NotContains(t, m.Headers, header.Count)
		assert.NotEmpty(t, m.Headers[header.ID])
		deaths, _ := m.Headers["x-death"].([]any)
		for _, death := range deaths {
			assert.NotEmpty(t, death.(amqp091.Table)["exchange"], "the broker's own, of the ladder")
		}
	}
	assert.Equal(t, 0, d.Broker.Depth(other))
	got := d.queue(topic) // the levels still work for others
	now = time.Now()
	require.NoError(t, d.Publisher.Publish(topic, delayed("after", wmdelay.For(1200*time.Millisecond))))
	due(t, got.wait(t, 1)["after"], now.Add(1200*time.Millisecond))
}

// lateMarshaler sets what only the broker acts on.
type lateMarshaler struct{ amqp.DefaultMarshaler }

func (m lateMarshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	p, err := m.DefaultMarshaler.Marshal(msg)
	p.Priority, p.Expiration = 9, "60000"
	p.Headers["CC"] = []any{msg.Metadata["other"]}

	return p, err
}

// A message that is due already does not wait in the ladder, so it keeps what its publisher has
// set.
func TestDelayPublish_PastKeepsItsProperties(t *testing.T) {
	t.Parallel()

	conf := amqp.NewDurableQueueConfig(brokertest.URI(t))
	conf.Marshaler = lateMarshaler{}
	d := newDelays(t, conf, nil)
	topic, other := uniqueName("delayed"), uniqueName("other")
	d.Broker.Declare(topic, nil)
	d.Broker.Declare(other, nil)
	msg := delayed("past", wmdelay.For(-time.Second))
	msg.Metadata["other"] = other
	require.NoError(t, d.Publisher.Publish(topic, msg))
	for _, queue := range []string{topic, other} {
		got := d.Broker.Take(queue, 1)[0]
		assert.Equal(t, "60000", got.Expiration)
		assert.EqualValues(t, 9, got.Priority)
	}
}

// 1,000 messages of one call, or of many calls at a time, do not wait for each other's
// confirmations.
func TestDelayPublish_Pipelined(t *testing.T) {
	t.Parallel()

	d, topic, got := newDelayed(t, brokertest.URI(t), withOwnLadder)
	batch := func(prefix string, n int) []*message.Message {
		var messages []*message.Message
		for _, uuid := range rabbit.Numbered(prefix, n) {
			messages = append(messages, delayed(uuid, wmdelay.For(700*time.Millisecond)))
		}

		return messages
	}
	require.NoError(t, d.Publisher.Publish(topic, batch("first", 1)...))

	// The best of several: a machine that stands still for a moment makes one of them several times
	// as long.
	together, single, published := time.Hour, time.Hour, 1
	for try := 0; try < 5 && 3*together >= single; try++ {
		all, some := batch(fmt.Sprint("together-", try), 1000), batch(fmt.Sprint("single-", try), 100)
		began := time.Now()
		require.NoError(t, d.Publisher.Publish(topic, all...))
		together = min(together, time.Since(began))

		began = time.Now()
		for _, msg := range some {
			require.NoError(t, d.Publisher.Publish(topic, msg))
		}
		single = min(single, 10*time.Since(began))
		published += len(all) + len(some)
	}

	began := time.Now()
	var wg sync.WaitGroup
	for _, msg := range batch("callers", 1000) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			assert.NoError(t, d.Publisher.Publish(topic, msg))
		}()
	}
	wg.Wait()
	callers := time.Since(began)

	t.Logf("1000 messages: %s in one call, %s of 1000 callers, %s one by one", together, callers, single)
	assert.Less(t, 3*together, single)
	got.wait(t, published+1000)
}

// Close ends what waits for the broker, closes the wrapped publisher, and does not hang.
// Retrier.Close closes what is still open.
func TestDelayPublish_Close(t *testing.T) {
	t.Parallel()

	proxy := newProxy(t, brokertest.URI(t))
	d := newDelays(t, amqp.NewDurableQueueConfig(proxy.URI), func(_ *delay.Options, r *amqpretry.Options) {
		r.CloseTimeout = 500 * time.Millisecond
	})
	stock := d.Wrapped.Publisher
	t.Cleanup(func() { assert.NoError(t, stock.Close()) })
	d.Wrapped.Publisher = closer{} // its Close has a second, which is short on a busy machine
	topic := uniqueName("delayed")
	got := d.queue(topic)
	require.NoError(t, d.Publisher.Publish(topic, delayed("before", wmdelay.For(100*time.Millisecond))))
	got.wait(t, 1)
	proxy.stallAnswers(delayer)
	hangs := make(chan error, 1)
	go func() { hangs <- d.Publisher.Publish(topic, delayed("hangs", wmdelay.For(100*time.Millisecond))) }()
	await.Until(t, func() bool { return len(got.of("hangs")) == 1 }, "the broker has it")
	began := time.Now()
	require.NoError(t, d.Publisher.Close())
	assert.Less(t, time.Since(began), 15*time.Second, "amqp091-go gives up a silent connection after 30 s")
	err := await.Value(t, hangs, "Publish returns")
	require.ErrorIs(t, err, publish.ErrUnconfirmed)
	require.ErrorIs(t, err, amqpretry.ErrClosed)
	require.NoError(t, d.Publisher.Close(), "again")
	assert.EqualValues(t, 1, d.Wrapped.closed.Load())
	for _, msg := range []*message.Message{delayed("a", wmdelay.For(time.Second)), message.NewMessage("b", nil)} {
		require.ErrorIs(t, d.Publisher.Publish(topic, msg), amqpretry.ErrClosed)
	}

	second := &wrapped{Publisher: closer{errFate}}
	open := must(d.Retrier.NewDelayPublisher(second, d.Options))(t)
	require.NoError(t, d.Retrier.Close())
	assert.EqualValues(t, 1, second.closed.Load())
	require.ErrorIs(t, open.Publish(topic, delayed("a", wmdelay.For(time.Second))), amqpretry.ErrClosed)
	require.ErrorIs(t, open.Close(), errFate, "it tells what that publisher has said")
	_, err = d.Retrier.NewDelayPublisher(second, d.Options)
	require.ErrorIs(t, err, amqpretry.ErrClosed)
}

type closer struct{ err error }

func (c closer) Publish(string, ...*message.Message) error { return errors.New("not asked for") }
func (c closer) Close() error                              { return c.err }

// While an alarm blocks the connection, Publish is bounded; nothing of it comes when the alarm is
// over.
func TestDelayPublish_Alarm_OwnBroker(t *testing.T) {
	t.Parallel()

	broker := brokertest.Start(t)
	d, topic, got := newDelayed(t, broker.URI, func(o *delay.Options, _ *amqpretry.Options) {
		o.PublishTimeout = time.Second
	})
	d.publishes(topic, "before")
	got.wait(t, 1)
	broker.Ctl("set_vm_memory_high_watermark", "0.00001")
	// The broker tells a connection that it is blocked when it publishes.
	_ = d.Publisher.Publish(topic, delayed("tells", wmdelay.For(100*time.Millisecond)))
	await.Until(t, func() bool { return d.Events(retry.EventBlocked) > 0 }, "the connection is blocked")
	began := time.Now()
	err := d.Publisher.Publish(topic, delayed("blocked", wmdelay.For(100*time.Millisecond)))
	assert.Equal(t, []string{"blocked"}, notStored(t, err))
	require.ErrorContains(t, err, "blocked the connection")
	assert.Less(t, time.Since(began), 30*time.Second, "the alarm has no end")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	msg := delayed("ended", wmdelay.For(100*time.Millisecond))
	msg.SetContext(ctx)
	require.ErrorIs(t, d.Publisher.Publish(topic, msg), context.DeadlineExceeded)

	broker.Ctl("set_vm_memory_high_watermark", "0.4")
	await.Until(t, func() bool {
		return d.Publisher.Publish(topic, delayed("after", wmdelay.For(100*time.Millisecond))) == nil
	})
	await.Until(t, func() bool { return len(got.of("after")) > 0 }, "it goes on")
	assert.Empty(t, got.of("blocked"))
	assert.Empty(t, got.of("ended"))
}
