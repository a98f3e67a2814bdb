package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
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
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// delays is a service that publishes with delays, and a ladder of its own: units of 100 ms, up to
// 99.9 s.
type delays struct {
	t         *testing.T
	Retrier   *adapter.Retrier
	Publisher *amqpretry.Publisher
	Wrapped   *wrapped
	Sub       *amqpretry.Subscriber
	Ladder    topology.Ladder
	Broker    *rabbit.Client
	Options   delay.Options
	Events    func(retry.EventKind) int

	topics []string // to be removed
}

type wrapped struct {
	message.Publisher
	uuids  records[string]
	closed atomic.Int32 // two delay publishers may share it
}

func (w *wrapped) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		w.uuids.put(msg.UUID)
	}

	return w.Publisher.Publish(topic, messages...)
}

func (w *wrapped) Close() error {
	w.closed.Add(1)

	return w.Publisher.Close()
}

func withOwnLadder(o *delay.Options, _ *amqpretry.Options) { o.Ladder = ownLadder() }

// newDelays makes a retrier with a delay publisher that uses [commonLadder]. configure may be nil.
func newDelays(t *testing.T, conf amqp.Config, configure func(*delay.Options, *amqpretry.Options)) *delays {
	t.Helper()
	conf.Connection.Reconnect = fastReconnect()
	d := &delays{t: t, Broker: newRabbit(t, conf.Connection.AmqpURI), Options: delay.Options{
		Ladder: commonLadder, PublishTimeout: 2 * time.Minute, // the first publish may declare the ladder
	}}
	var events records[retry.EventKind]
	d.Events = func(kind retry.EventKind) int {
		return len(events.where(func(k retry.EventKind) bool { return k == kind }))
	}
	options := amqpretry.Options{Logger: newLogs(t), CloseTimeout: time.Minute, OnEvent: func(e retry.Event) {
		events.put(e.Kind)
	}}
	options.Policies = retries(ms(200)...)
	options.Policies.Default.Strategy = config.StrategyQueues // landing queues are those of delayed publishing only
	if configure != nil {
		configure(&d.Options, &options)
	}
	ladder := must(topology.NewLadder(d.Options.Ladder))(t)
	d.Ladder = ladder
	// Registered before the retrier is closed, so that it comes after that: a subscriber would
	// declare its queue again.
	t.Cleanup(func() {
		for _, topic := range d.topics {
			plan := must(d.Retrier.Plan(topic))(t)
			d.Broker.RemovePlan(plan)
			d.Broker.Remove("", topic+".landing", topic+".exchange.landing")
			d.Broker.Remove(topic)
		}
		if !rabbit.IsShared(&ladder) {
			d.Broker.RemovePlan(ladder.Shared())
		}
	})

	d.Retrier = newRetrier(t, conf, options)
	stock := d.Retrier.Config()
	stock.Connection.AmqpURI = brokerBehind(conf.Connection.AmqpURI)
	publisher := must(amqp.NewPublisher(stock, options.Logger))(t)
	d.Wrapped = &wrapped{Publisher: publisher}
	d.Publisher = must(d.Retrier.NewDelayPublisher(d.Wrapped, d.Options))(t)

	return d
}

func newDelayed(
	t *testing.T, uri string, configure func(*delay.Options, *amqpretry.Options),
) (*delays, string, *arrivals) {
	t.Helper()
	d, topic := newDelays(t, amqp.NewDurableQueueConfig(uri), configure), uniqueName("delayed")

	return d, topic, d.queue(topic)
}

func (d *delays) queue(topic string) *arrivals {
	d.t.Helper()
	if d.Sub == nil {
		d.Sub = must(d.Retrier.NewSubscriber())(d.t)
	}
	d.removeTopic(topic)
	messages := must(d.Sub.Subscribe(context.Background(), topic))(d.t)

	return collect(messages)
}

// publishes publishes a message until the ladder is declared, which may take longer than a short
// PublishTimeout.
func (d *delays) publishes(topic, uuid string) {
	d.t.Helper()
	await.Until(d.t, func() bool {
		return d.Publisher.Publish(topic, delayed(uuid, wmdelay.For(100*time.Millisecond))) == nil
	}, "the ladder is declared")
}

// declareLadder declares the ladder before a test looks at the clock. Tests of the declaration do
// not call it.
func (d *delays) declareLadder() {
	d.t.Helper()
	d.Broker.Do(func(channel *amqp091.Channel) error { return d.Ladder.Shared().Declare(channel) })
}

func (d *delays) removeTopic(topic string) { d.topics = append(d.topics, topic) }

type arrivals struct{ records[arrival] }

type arrival struct {
	At       time.Time
	UUID     string
	Metadata message.Metadata
	Payload  string
}

func collect(messages <-chan *message.Message) *arrivals {
	a := &arrivals{}
	go func() {
		for msg := range messages {
			a.put(arrival{time.Now(), msg.UUID, msg.Metadata, string(msg.Payload)})
			msg.Ack()
		}
	}()

	return a
}

func (a *arrivals) of(uuid string) []arrival {
	return a.where(func(one arrival) bool { return one.UUID == uuid })
}

func (a *arrivals) wait(t *testing.T, n int) map[string]arrival {
	t.Helper()
	await.Until(t, func() bool { return len(a.All()) >= n }, "%d messages arrive", n)
	byUUID := map[string]arrival{}
	for _, one := range a.All() {
		byUUID[one.UUID] = one
	}
	require.Len(t, byUUID, n)

	return byUUID
}

func (a *arrivals) first(t *testing.T, uuid string) arrival {
	t.Helper()
	await.Until(t, func() bool { return len(a.of(uuid)) > 0 }, "%s arrives", uuid)

	return a.of(uuid)[0]
}

// tooLate is more than a busy machine makes a message late. One that went astray in the ladder is
// late by up to 100 s.
const tooLate = 30 * time.Second

// due requires that a message came when it was due: never early, and not much later.
func due(t *testing.T, one arrival, at time.Time) {
	t.Helper()
	dueAfter(t, one, at, at)
}

// dueAfter is due for a message whose publish returned at that time: it had to declare the ladder,
// which takes 20 s and more on a busy machine. The message is late only after that.
func dueAfter(t *testing.T, one arrival, at, published time.Time) {
	t.Helper()
	assert.False(t, one.At.Before(at), "%s came %s early", one.UUID, at.Sub(one.At))
	late := one.At.Sub(at)
	if published.After(at) {
		late = one.At.Sub(published)
	}
	assert.Less(t, late, tooLate, "%s came late", one.UUID)
}

func delayed(uuid string, d wmdelay.Delay) *message.Message {
	msg := message.NewMessage(uuid, []byte(uuid))
	wmdelay.Message(msg, d)

	return msg
}

// A message is due when its metadata, its context or the generator says; one without a delay goes
// to the wrapped publisher.
func TestDelayPublish_Ways(t *testing.T) {
	t.Parallel()

	d := newDelays(t, amqp.NewDurableQueueConfig(brokertest.URI(t)), nil)
	topic, generated := uniqueName("delayed"), uniqueName("delayed")
	got := d.queue(topic)

	d.declareLadder()
	expected := map[string]time.Time{}
	now := time.Now()
	until := now.Add(2300 * time.Millisecond)
	inContext := message.NewMessage("context", []byte("context"))
	inContext.SetContext(wmdelay.WithContext(t.Context(), wmdelay.For(700*time.Millisecond)))
	onlyFor := message.NewMessage("only-for", []byte("only-for"))
	onlyFor.Metadata.Set(wmdelay.DelayedForKey, "1.2s")
	onlyUntil := message.NewMessage("only-until", []byte("only-until"))
	onlyUntil.Metadata.Set(wmdelay.DelayedUntilKey, until.Add(time.Second).Format(time.RFC3339))
	expected["for"], expected["until"] = now.Add(1500*time.Millisecond), until
	expected["context"], expected["only-for"] = now.Add(700*time.Millisecond), now.Add(1200*time.Millisecond)
	expected["only-until"] = until.Add(time.Second).Truncate(time.Second)
	expected["none"], expected["past"] = now, now
	past := delayed("past", wmdelay.Until(now.Add(-time.Hour)))
	require.NoError(t, d.Publisher.Publish(topic, delayed("for", wmdelay.For(1500*time.Millisecond)),
		delayed("until", wmdelay.Until(until)), inContext, onlyFor, onlyUntil,
		message.NewMessage("none", []byte("none")), past))

	all := got.wait(t, len(expected))
	for uuid, at := range expected {
		due(t, all[uuid], at)
		assert.Equal(t, uuid, all[uuid].Payload)
		for key := range all[uuid].Metadata {
			assert.False(t, header.IsOwn(key) || header.IsBroker(key), "%s: %s", uuid, key)
		}
	}
	assert.Equal(t, []string{"none"}, d.Wrapped.uuids.All())
	assert.True(t, all["past"].At.Before(all["context"].At), "a past delay is published at once")
	assert.Equal(t, onlyUntil.Metadata, all["only-until"].Metadata, "the metadata stays on the message")
	assert.Equal(t, inContext.Metadata, all["context"].Metadata, "as Watermill's publisher has written it")
	assert.Equal(t, "700ms", all["context"].Metadata[wmdelay.DelayedForKey])
	assert.Equal(t, past.Metadata, all["past"].Metadata)

	// The generator gives a delay to those that have none.
	options := d.Options
	var asked []string
	options.DefaultDelayGenerator = func(p wmdelay.DefaultDelayGeneratorParams) (wmdelay.Delay, error) {
		asked = append(asked, p.Topic+" "+p.Message.UUID)
		if p.Message.UUID == "refused" {
			return wmdelay.Delay{}, errFate
		}

		return wmdelay.For(600 * time.Millisecond), nil
	}
	second := must(d.Retrier.NewDelayPublisher(d.Wrapped, options))(t)
	got = d.queue(generated)
	now = time.Now()
	require.NoError(t, second.Publish(generated, message.NewMessage("default", nil),
		delayed("own", wmdelay.For(300*time.Millisecond))))
	all = got.wait(t, 2)
	due(t, all["default"], now.Add(600*time.Millisecond))
	due(t, all["own"], now.Add(300*time.Millisecond))
	assert.Equal(t, []string{generated + " default"}, asked)
	require.ErrorIs(t, second.Publish(generated, delayed("before", wmdelay.For(time.Millisecond)),
		message.NewMessage("refused", nil)), errFate)
	require.NoError(t, second.Publish(generated, delayed("last", wmdelay.For(time.Millisecond))))
	assert.Contains(t, got.wait(t, 3), "last", "nothing of the call was published: it would have come before")
}

// An event comes to each queue that is bound to the topic's exchange, once and when it is due, also
// to one that is bound while it waits.
func TestDelayPublish_FanOut(t *testing.T) {
	t.Parallel()

	uri := brokertest.URI(t)
	broker := newRabbit(t, uri)
	a := newDelays(t, amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("a")), withOwnLadder)
	b := newDelays(t, amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("b")),
		func(o *delay.Options, _ *amqpretry.Options) { o.Ladder = a.Options.Ladder })
	a.declareLadder()
	var (
		topic      string
		early      time.Time
		gotA, gotB *arrivals
	)
	for wait := 5 * time.Second; ; wait *= 3 { // on a busy machine it takes long to declare the queues
		topic = uniqueName("event")
		now := time.Now()
		require.NoError(t, a.Publisher.Publish(topic, delayed("early", wmdelay.For(wait))), "no exchange yet")
		t.Cleanup(func() { broker.Remove(topic, topic+".exchange.landing") })
		gotA, gotB, early = a.queue(topic), b.queue(topic), now.Add(wait)
		none := len(gotA.All())+len(gotB.All()) == 0
		if time.Now().Before(early) {
			require.True(t, none, "it waits")
			break
		}
		require.Less(t, wait, 30*time.Second, "both are bound too late")
	}

	now := time.Now()
	require.NoError(t, a.Publisher.Publish(topic, delayed("1", wmdelay.For(800*time.Millisecond)),
		delayed("2", wmdelay.For(1400*time.Millisecond)), delayed("past", wmdelay.For(-time.Minute))))
	for _, got := range []*arrivals{gotA, gotB} {
		all := got.wait(t, 4)
		due(t, all["early"], early)
		due(t, all["1"], now.Add(800*time.Millisecond))
		due(t, all["2"], now.Add(1400*time.Millisecond))
		due(t, all["past"], now)
	}
	await.Stays(t, 300*time.Millisecond, func() bool { return len(gotA.All()) == 4 && len(gotB.All()) == 4 }, "once")
	assert.Equal(t, 0, broker.Depth(a.Ladder.Unroutable()))
}

// Messages for an exchange to which nothing is bound wait in its landing queue. One that is due at
// once is refused.
func TestDelayPublish_NothingBound(t *testing.T) {
	t.Parallel()

	uri, topic := brokertest.URI(t), uniqueName("event")
	d := newDelays(t, amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("a")), withOwnLadder)
	t.Cleanup(func() { d.Broker.Remove(topic, topic+".exchange.landing") })
	err := d.Publisher.Publish(topic, delayed("past", wmdelay.For(-time.Second)))
	require.ErrorIs(t, err, publish.ErrUnroutable)
	assert.Equal(t, []string{"past"}, notStored(t, err))
	require.ErrorContains(t, err, `none is bound to the exchange "`+topic+`" for the routing key ""`)

	require.NoError(t, d.Publisher.Publish(topic, delayed("waits", wmdelay.For(200*time.Millisecond))))
	await.Stays(t, time.Second, func() bool { return d.Broker.Depth(d.Ladder.Unroutable()) == 0 }, "it lands")
	depths := must(d.Retrier.QueueDepths(t.Context()))(t)
	waits := map[retry.QueueRole]int{}
	for _, depth := range depths {
		waits[depth.Role]++
	}
	assert.Equal(t, map[retry.QueueRole]int{retry.QueueRoleDelay: 27, retry.QueueRoleUnroutable: 1}, waits)
}

func notStored(t *testing.T, err error) []string {
	t.Helper()
	failed := errorAs[*publish.Error](t, err)
	var uuids []string
	for _, f := range failed.Failed {
		uuids = append(uuids, f.UUID)
	}

	return uuids
}

// A queue that does not exist is an error at once, as the broker would only find out when the
// message is due.
func TestDelayPublish_NoQueue(t *testing.T) {
	t.Parallel()

	d := newDelays(t, amqp.NewDurableQueueConfig(brokertest.URI(t)), withOwnLadder)
	topic := uniqueName("missing")
	for _, after := range []time.Duration{time.Minute, -time.Minute} {
		err := d.Publisher.Publish(topic, delayed("a", wmdelay.For(after)), delayed("b", wmdelay.For(after)),
			message.NewMessage("none", nil))
		require.ErrorIs(t, err, publish.ErrUnroutable)
		assert.Equal(t, []string{"a", "b"}, notStored(t, err))
		assert.ErrorContains(t, err, `cannot publish 2 of 2 messages to topic "`+topic+
			`": message "a" (not stored): no queue gets it: the queue "`+topic+`" does not exist`)
	}
	assert.Empty(t, d.Wrapped.uuids.All(), "those without a delay come last")
	assert.Equal(t, -1, d.Broker.Depth(topic+".landing"), "nothing is declared for it")
	assert.Equal(t, -1, d.Broker.Depth(d.Ladder.Unroutable()), "nor the ladder")

	got := d.queue(topic)
	now := time.Now()
	require.NoError(t, d.Publisher.Publish(topic, delayed("a", wmdelay.For(400*time.Millisecond))), "now it is there")
	published := time.Now()
	dueAfter(t, got.wait(t, 1)["a"], now.Add(400*time.Millisecond), published)
}

// The connection is cut again and again while many publish: each message that Publish has returned
// nil for arrives, and each that has not arrived is named in an error.
func TestDelayPublish_ConnectionCut(t *testing.T) {
	t.Parallel()

	proxy := newProxy(t, brokertest.URI(t))
	d, topic, got := newDelayed(t, proxy.URI, withOwnLadder)
	require.NoError(t, d.Publisher.Publish(topic, delayed("first", wmdelay.For(100*time.Millisecond))))

	stop := make(chan struct{})
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		sure = map[string]time.Time{"first": {}}
	)
	for worker := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				var batch []*message.Message
				for i := range 20 {
					uuid := fmt.Sprintf("%d-%d-%d", worker, n, i)
					batch = append(batch, delayed(uuid, wmdelay.For(300*time.Millisecond)))
				}
				at := time.Now()
				if assert.NoError(t, d.Publisher.Publish(topic, batch...), "it connects again in time") {
					mu.Lock()
					for _, msg := range batch {
						sure[msg.UUID] = at.Add(300 * time.Millisecond)
					}
					mu.Unlock()
				}
			}
		}()
	}
	published := func() int {
		mu.Lock()
		defer mu.Unlock()

		return len(sure)
	}
	cuts := 0
	for i := range 8 {
		before := published()
		await.Until(t, func() bool { return published() > before && proxy.matching(delayer) != nil }, "it publishes")
		if i%2 == 0 {
			cuts += proxy.cut(delayer)
		} else {
			proxy.cutAfter(delayer, int64(1000+997*i)) // in the middle of a frame
			cuts++
		}
	}
	close(stop)
	wg.Wait()
	require.Greater(t, cuts, 4)

	await.Until(t, func() bool {
		arrived := map[string]bool{}
		for _, one := range got.All() {
			arrived[one.UUID] = true
		}
		for uuid := range sure {
			if !arrived[uuid] {
				return false
			}
		}

		return true
	}, "all %d messages arrive", len(sure))
	for _, one := range got.All() {
		assert.False(t, one.At.Before(sure[one.UUID]), "%s is never early", one.UUID)
	}
	t.Logf("%d messages, %d duplicates, %d connections", len(sure), len(got.All())-len(sure), proxy.dialled(delayer))
	require.Greater(t, proxy.dialled(delayer), 3)
	assert.Equal(t, 0, d.Broker.Depth(d.Ladder.Unroutable()))
}

// While the broker does not answer, Publish returns in time, names the messages, and buffers
// nothing for later.
func TestDelayPublish_NoAnswer(t *testing.T) {
	t.Parallel()

	proxy := newProxy(t, brokertest.URI(t))
	d, topic, got := newDelayed(t, proxy.URI, func(o *delay.Options, _ *amqpretry.Options) {
		o.PublishTimeout = time.Second
	})
	d.publishes(topic, "before")
	got.wait(t, 1)
	options := d.Options
	options.PublishTimeout = await.Bound
	patient := must(d.Retrier.NewDelayPublisher(d.Wrapped, options))(t)
	require.NoError(t, patient.Publish(topic, delayed("before", wmdelay.For(100*time.Millisecond))))
	publishers := map[string]*amqpretry.Publisher{"timeout": d.Publisher, "context": patient}
	for name, fault := range map[string]func(string){"silent": proxy.stallAnswers, "gone": proxy.refuse} {
		fault(delayer)
		for bounded, publisher := range publishers {
			msg := delayed(name+" "+bounded, wmdelay.For(100*time.Millisecond))
			ctx, cancel := context.WithCancelCause(t.Context())
			if bounded == "context" {
				msg.SetContext(ctx)
				time.AfterFunc(300*time.Millisecond, func() { cancel(errFate) })
			}
			began := time.Now()
			err := publisher.Publish(topic, msg, message.NewMessage("none", nil))
			require.ErrorIs(t, err, publish.ErrUnconfirmed)
			assert.Equal(t, []string{msg.UUID}, notStored(t, err))
			assert.Equal(t, bounded == "context", errors.Is(err, errFate), err)
			assert.Less(t, time.Since(began), 15*time.Second, "amqp091-go gives up a silent connection after 30 s")
			cancel(nil)
		}
		proxy.resume()
		proxy.allow(delayer)
	}
	assert.Empty(t, d.Wrapped.uuids.All())

	d.publishes(topic, "after")
	await.Until(t, func() bool { return len(got.of("after")) > 0 }, "it goes on")
	assert.Empty(t, got.of("gone timeout"), "what was never sent does not come later")
}

// Whoever may publish to the ladder cannot reach a queue that takes no part.
func TestDelayPublish_ForgedKey(t *testing.T) {
	t.Parallel()

	d := newDelays(t, amqp.NewDurableQueueConfig(brokertest.URI(t)), withOwnLadder)
	topic, other := uniqueName("delayed"), uniqueName("other")
	got := d.queue(topic)
	d.Broker.Declare(other, nil)
	require.NoError(t, d.Publisher.Publish(topic, delayed("1", wmdelay.For(100*time.Millisecond))))
	got.wait(t, 1)
	for _, target := range []topology.Target{{Key: other}, {Exchange: "amq.fanout"}, {Exchange: topic}} {
		message := rabbit.Message("forged", "forged")
		exchange, key := d.Ladder.Address(target, 200*time.Millisecond, &message)
		d.Broker.PublishTo(exchange, key, message)
	}
	d.Broker.PublishTo(d.Ladder.Level(0), "0.0.1.q", rabbit.Message("forged", "forged"))
	d.Broker.PublishTo(d.Ladder.Level(0), "0.0.1.q."+topic+".x", rabbit.Message("forged", "forged"))
	d.Broker.PublishTo(d.Ladder.Level(0), "0.0.1.x.q."+topic, rabbit.Message("forged", "forged"))
	d.Broker.Has(d.Ladder.Unroutable(), 6)
	assert.Equal(t, 0, d.Broker.Depth(other))
	assert.Len(t, got.All(), 1)
}

// Names with characters that a topic exchange knows reach their own queue and no other.
func TestDelayPublish_Names(t *testing.T) {
	t.Parallel()

	uri := brokertest.URI(t)
	base := uniqueName("n")
	queues := newDelays(t, amqp.NewDurableQueueConfig(uri), withOwnLadder)
	keyOf := func(topic string) string { _, key, _ := strings.Cut(topic, "|"); return key }
	conf := amqp.NewDurablePubSubConfig(uri, nil)
	conf.Exchange.Type = "direct"
	conf.Exchange.GenerateName = func(topic string) string { name, _, _ := strings.Cut(topic, "|"); return name }
	conf.Publish.GenerateRoutingKey = keyOf
	conf.Queue.GenerateName = func(topic string) string { return strings.ReplaceAll(topic, "|", "-of-") }
	// v2 gives the generator of a binding's key the queue, v3 the topic
	conf.QueueBind.GenerateRoutingKey = func(of string) string {
		_, key, _ := strings.Cut(strings.ReplaceAll(of, "-of-", "|"), "|")

		return key
	}
	exchanges := newDelays(t, conf, func(o *delay.Options, _ *amqpretry.Options) { o.Ladder = queues.Options.Ladder })

	got := map[string]*arrivals{}
	names := []string{
		base, base + ".eu", "eu." + base, base + ".*", base + ".#", base + ".%2A", base + ".a b/ü", base + ".%",
	}
	for _, name := range names {
		got["q "+name] = queues.queue(name)
		for _, key := range []string{"", "*", "#", "a.b", "eu." + base} {
			topic := name + "|" + key // an exchange and a queue of the same name
			got["x "+topic] = exchanges.queue(topic)
			t.Cleanup(func() {
				landing := topology.Names{}.WithDefaults().Landing(topology.Target{Exchange: name, Key: key})
				queues.Broker.Remove(name, landing)
			})
		}
	}
	queues.declareLadder()
	at, published := map[string]time.Time{}, map[string]time.Time{}
	for of := range got { // each publish declares its target, which takes a while
		at[of] = time.Now()
		kind, topic, _ := strings.Cut(of, " ")
		d := map[string]*delays{"q": queues, "x": exchanges}[kind]
		require.NoError(t, d.Publisher.Publish(topic, delayed(of, wmdelay.For(300*time.Millisecond))), of)
		published[of] = time.Now()
	}
	for of, arrived := range got {
		dueAfter(t, arrived.wait(t, 1)[of], at[of].Add(300*time.Millisecond), published[of])
	}
	await.Stays(t, 300*time.Millisecond, func() bool {
		for _, arrived := range got {
			if len(arrived.All()) != 1 {
				return false
			}
		}

		return true
	}, "each to its own queue, once")
	assert.Equal(t, 0, queues.Broker.Depth(queues.Ladder.Unroutable()))
}

// A routing key has room for 255 bytes. A longer one is refused before it could close the
// connection.
func TestDelayPublish_LongNames(t *testing.T) {
	t.Parallel()

	d := newDelays(t, amqp.NewDurableQueueConfig(brokertest.URI(t)), func(o *delay.Options, r *amqpretry.Options) {
		short := func(queue string) string { return queue[:40] }
		r.Names = topology.Names{
			RetryExchange:   func(queue string) string { return short(queue) + ".retry" },
			RetryQueue:      func(p topology.RetryQueueParams) string { return short(p.Queue) + ".retry." + p.Delay },
			DeadLetterQueue: func(queue string) string { return short(queue) + ".dlq" },
			Landing:         func(target topology.Target) string { return short(target.Key) + ".landing" },
		}
	})
	const digits = len("0.0.0.") + len("q.")
	base := uniqueName("long") + strings.Repeat("n", 300)
	longest, tooLong := base[:255-digits], base[:255-digits+1]
	got := d.queue(longest)
	d.declareLadder()
	now := time.Now()
	require.NoError(t, d.Publisher.Publish(longest, delayed("1", wmdelay.For(300*time.Millisecond))))
	due(t, got.wait(t, 1)["1"], now.Add(300*time.Millisecond))
	for _, after := range []time.Duration{300 * time.Millisecond, -time.Second} {
		for _, topic := range []string{tooLong, base} {
			require.ErrorAs(t, d.Publisher.Publish(topic, delayed("2", wmdelay.For(after))), new(*topology.NameError))
		}
	}
	assert.Equal(t, 0, d.Events(retry.EventDisconnected))
	d.Broker.Remove("", longest[:40]+".landing")
}
