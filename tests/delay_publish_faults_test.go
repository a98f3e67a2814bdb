package tests

import (
	"fmt"
	"strings"
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
// back, with the bindings of the topics that the publisher has used: what waits for these is not
// unroutable.
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
