package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/publish"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// newPublisher makes a publisher of a retrier of its own, which is closed with the test.
func newPublisher(t *testing.T, conf amqp.Config, options amqpretry.Options) *amqpretry.Publisher {
	t.Helper()
	conf.Connection.Reconnect = fastReconnect()
	if options.Logger == nil {
		options.Logger = newLogs(t)
	}
	publisher := must(newRetrier(t, conf, options).NewPublisher())(t)

	return publisher
}

func withTimeout(d time.Duration) amqpretry.Options {
	return amqpretry.Options{Publisher: publish.Options{Timeout: d}}
}

func newTopic(t *testing.T) (uri string, broker *rabbit.Client, topic string) {
	t.Helper()
	uri, topic = brokertest.URI(t), uniqueName("publisher")
	broker = newRabbit(t, uri)
	broker.Declare(topic, nil)

	return uri, broker, topic
}

func failures(t *testing.T, err error) *publish.Error {
	t.Helper()
	return errorAs[*publish.Error](t, err)
}

func isFailure(t *testing.T, err, cause error, errorType string) {
	t.Helper()
	require.ErrorIs(t, err, cause)
	assert.Equal(t, errorType, failures(t, err).ErrorType())
}

// watermillMessages are some with these UUIDs, which are their payloads as well.
func watermillMessages(uuids ...string) []*message.Message {
	messages := make([]*message.Message, len(uuids))
	for i, uuid := range uuids {
		messages[i] = message.NewMessage(uuid, []byte(uuid))
	}

	return messages
}

// It publishes as watermill-amqp does: the message that arrives is the same, but for the id of
// ours, and it is persistent.
func TestPublisher_IsADropIn(t *testing.T) {
	t.Parallel()
	uri := brokertest.URI(t)
	queue := uniqueName("publisher")
	pubSub := amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameConstant(queue))
	pubSub.Exchange.Type = "topic"
	pubSub.Publish.GenerateRoutingKey = func(topic string) string { return "key-" + topic }
	transient := amqp.NewDurableQueueConfig(uri)
	transient.Marshaler = amqp.DefaultMarshaler{NotPersistentDeliveryMode: true}
	for name, conf := range map[string]amqp.Config{
		"queue": amqp.NewDurableQueueConfig(uri), "pubsub": pubSub, "transient": transient,
	} {
		t.Run(name, func(t *testing.T) {
			broker, topic := newRabbit(t, uri), uniqueName("publisher")
			read := topic
			if name == "pubsub" {
				read = queue
			}
			broker.Declare(read, nil)
			stock := must(amqp.NewPublisher(conf, watermill.NopLogger{}))(t)
			t.Cleanup(func() { assert.NoError(t, stock.Close()) })
			own := newPublisher(t, conf, amqpretry.Options{})
			msg := message.NewMessage("order-1", []byte(`{"n":1}`))
			msg.Metadata = message.Metadata{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
				"a": "b"}
			require.NoError(t, stock.Publish(topic, msg)) // declares the exchange
			if name == "pubsub" {
				broker.Do(func(channel *amqp091.Channel) error {
					return channel.QueueBind(read, "#", topic, false, nil)
				})
				t.Cleanup(func() { broker.Remove(topic) })
				require.NoError(t, stock.Publish(topic, msg))
			}
			msg.Metadata[header.Count], msg.Metadata[header.Queue], msg.Metadata["x-death"] = "3", topic, "x"
			require.NoError(t, own.Publish(topic, msg))

			taken := broker.Take(read, 2)
			assert.Equal(t, amqp091.Persistent, taken[1].DeliveryMode)
			assert.NotEmpty(t, taken[1].Headers[header.ID])
			delete(taken[1].Headers, header.ID)
			assert.Equal(t, taken[0].Headers, taken[1].Headers)
			for _, d := range taken {
				assert.Equal(t, msg.Payload, message.Payload(d.Body))
			}
			assert.Equal(t, taken[0].RoutingKey, taken[1].RoutingKey)
			assert.Equal(t, taken[0].Exchange, taken[1].Exchange)
			assert.Equal(t, taken[0].ContentType, taken[1].ContentType)
		})
	}
}

// A message that no queue gets is an error that names it; what a queue got is stored.
func TestPublisher_Unroutable(t *testing.T) {
	t.Parallel()
	uri := brokertest.URI(t)

	t.Run("no queue", func(t *testing.T) {
		topic := uniqueName("publisher")
		publisher := newPublisher(t, amqp.NewDurableQueueConfig(uri), withTimeout(time.Minute))
		began := time.Now()
		err := publisher.Publish(topic, watermillMessages("a", "b")...)
		assert.Less(t, time.Since(began), 30*time.Second, "it is not tried until the end")
		isFailure(t, err, publish.ErrUnroutable, "unroutable")
		failed := failures(t, err)
		assert.Equal(t, topic, failed.Topic)
		assert.Equal(t, 2, failed.Of)
		require.Len(t, failed.Failed, 2)
		for i, f := range failed.Failed {
			assert.Equal(t, i, f.Index)
			assert.Equal(t, []string{"a", "b"}[i], f.UUID)
			assert.False(t, f.MayBeStored)
		}
		assert.Contains(t, err.Error(), `message "a" (not stored): no queue gets it: the queue "`+topic+`" does not exist`)
	})
	for _, ignore := range []bool{false, true} {
		t.Run(fmt.Sprintf("no binding/ignore %t", ignore), func(t *testing.T) {
			broker, topic := newRabbit(t, uri), uniqueName("publisher")
			t.Cleanup(func() { broker.Remove(topic) })
			conf := amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("x"))
			publisher := newPublisher(t, conf, amqpretry.Options{Publisher: publish.Options{IgnoreUnroutable: ignore}})
			err := publisher.Publish(topic, watermillMessages("a")...)
			if ignore {
				require.NoError(t, err)
				return
			}
			isFailure(t, err, publish.ErrUnroutable, "unroutable")
			assert.Contains(t, err.Error(), `none is bound to the exchange "`+topic+`"`)
		})
	}
}

// A full queue that refuses messages: those that are named, and only those, are not stored.
func TestPublisher_FullQueue(t *testing.T) {
	t.Parallel()
	uri := brokertest.URI(t)
	full := amqp091.Table{"x-max-length": int64(3), "x-overflow": "reject-publish"}
	uuids := rabbit.Numbered("m", 20)

	t.Run("default exchange", func(t *testing.T) {
		broker, topic := newRabbit(t, uri), uniqueName("publisher")
		broker.Declare(topic, full)
		publisher := newPublisher(t, amqp.NewDurableQueueConfig(uri), withTimeout(3*time.Second))
		began := time.Now()
		err := publisher.Publish(topic, watermillMessages(uuids...)...)
		isFailure(t, err, publish.ErrNacked, "nacked")
		assert.GreaterOrEqual(t, time.Since(began), 3*time.Second, "it is tried until the end")
		named := map[string]bool{}
		for _, f := range failures(t, err).Failed {
			assert.True(t, f.MayBeStored, "a nack does not say whether the queue is full or down")
			assert.True(t, f.RefusedEachTime)
			named[f.UUID] = true
		}
		for _, d := range broker.Drain(topic) {
			assert.False(t, named[string(d.Body)], "%s is stored, and the queue was full", d.Body)
			named[string(d.Body)] = true
		}
		assert.Len(t, named, len(uuids), "each is stored, or named")

		// When there is room again, it goes on by itself.
		patient := newPublisher(t, amqp.NewDurableQueueConfig(uri), withTimeout(await.Bound))
		published := make(chan error, 1)
		go func() { published <- patient.Publish(topic, watermillMessages(uuids...)...) }()
		seen := map[string]int{}
		for len(seen) < len(uuids) {
			for _, d := range broker.Take(topic, 1) {
				seen[string(d.Body)]++
			}
		}
		require.NoError(t, <-published)
		for uuid, times := range seen {
			assert.Equal(t, 1, times, uuid)
		}
	})

	// By a fan-out exchange the queues with room have it: it is not published again.
	t.Run("fan-out", func(t *testing.T) {
		broker, topic := newRabbit(t, uri), uniqueName("publisher")
		roomy, narrow := topic+"-roomy", topic+"-narrow"
		broker.Declare(roomy, nil)
		broker.Declare(narrow, full)
		bound(t, broker, topic, "fanout", roomy, "")
		bound(t, broker, topic, "fanout", narrow, "")
		publisher := newPublisher(t, amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("x")),
			amqpretry.Options{})
		err := publisher.Publish(topic, watermillMessages(uuids...)...)
		isFailure(t, err, publish.ErrNacked, "nacked")
		for _, f := range failures(t, err).Failed {
			assert.True(t, f.MayBeStored && f.RefusedEachTime)
		}
		assert.ErrorContains(t, err, "(refused each time)")
		assert.Len(t, broker.Drain(roomy), len(uuids), "once each")
	})
}

// A queue that is always full, as its consumer is slower than its publishers: their calls bring in
// what there is room for, and need the consumer's time and not much more.
func TestPublisher_QueueMakesRoomSlowly(t *testing.T) {
	t.Parallel()
	for _, queueType := range []string{"classic", "quorum"} {
		for _, publishers := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, publishers: %d", queueType, publishers), func(t *testing.T) {
				t.Parallel()
				publishIntoAFullQueue(t, queueType, publishers)
			})
		}
	}
}

func publishIntoAFullQueue(t *testing.T, queueType string, publishers int) {
	t.Helper()
	uri, topic := brokertest.URI(t), uniqueName("publisher")
	broker := newRabbit(t, uri)
	broker.Declare(topic, amqp091.Table{
		"x-queue-type": queueType, "x-max-length": int64(20), "x-overflow": "reject-publish",
	})
	const count = 240
	published := make(chan error, publishers)
	for i := range publishers {
		publisher := newPublisher(t, amqp.NewDurableQueueConfig(uri), withTimeout(await.Bound))
		messages := watermillMessages(rabbit.Numbered(fmt.Sprint("m-", i), count/publishers)...)
		go func() { published <- publisher.Publish(topic, messages...) }()
	}

	seen, empty, ended := map[string]int{}, 0, 0
	broker.Do(func(channel *amqp091.Channel) error {
		for ticker := time.NewTicker(10 * time.Millisecond); len(seen) < count; <-ticker.C { // 2.4 s in all
			select {
			case err := <-published:
				if err != nil {
					return err
				}
				ended++
			default:
			}
			if d, ok, err := channel.Get(topic, true); err != nil {
				return err
			} else if ok {
				seen[string(d.Body)]++
			} else {
				empty++
			}
		}

		return nil
	})
	for range publishers - ended {
		require.NoError(t, <-published)
	}
	assert.Less(t, empty, count, "the consumer seldom waits for the publishers")
	for uuid, times := range seen {
		assert.Equal(t, 1, times, uuid)
	}
}

type odd struct{ amqp.DefaultMarshaler }

func (m odd) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	p, err := m.DefaultMarshaler.Marshal(msg)
	p.Expiration, p.UserId = msg.Metadata["expires"], msg.Metadata["user"]
	if cc := msg.Metadata["cc"]; cc != "" {
		p.Headers["CC"] = cc
	}

	return p, err
}

// A message that the broker refuses for good closes the channel. It is found and named, and takes
// no other with it, of its own call and of others.
func TestPublisher_RefusedForGood(t *testing.T) {
	t.Parallel()
	type row struct {
		spoil func(*message.Message)
		text  string
	}
	each(t, map[string]row{
		"another user":  {func(m *message.Message) { m.Metadata["user"] = "somebody" }, "user_id"},
		"an expiration": {func(m *message.Message) { m.Metadata["expires"] = "soon" }, "invalid expiration"},
		"a CC of text":  {func(m *message.Message) { m.Metadata["cc"] = "text" }, "invalid CC header"},
		"a large payload": {func(m *message.Message) { m.Payload = make([]byte, 140<<20) },
			"larger than configured max size"},
	}, func(t *testing.T, _ string, test row) {
		testRefusedForGood(t, test.spoil, test.text)
	})
}

func testRefusedForGood(t *testing.T, spoil func(*message.Message), text string) {
	t.Helper()
	uri, broker, topic := newTopic(t)
	conf := amqp.NewDurableQueueConfig(uri)
	conf.Marshaler = odd{}
	publisher := newPublisher(t, conf, amqpretry.Options{})

	var others sync.WaitGroup
	for i := range 8 {
		others.Add(1)
		go func() {
			defer others.Done()
			for n := range 50 {
				assert.NoError(t, publisher.Publish(topic, watermillMessages(fmt.Sprintf("other-%d-%d", i, n))...))
			}
		}()
	}
	messages := watermillMessages("a", "bad-1", "b", "c", "bad-2", "d")
	spoil(messages[1])
	spoil(messages[4])
	err := publisher.Publish(topic, messages...)
	others.Wait()

	failed := failures(t, err).Failed
	require.Len(t, failed, 2)
	assert.Equal(t, "refused", failures(t, err).ErrorType())
	assert.Equal(t, 1, strings.Count(err.Error(), "bad-1"), "each is named once: %v", err)
	for i, f := range failed {
		assert.Equal(t, []string{"bad-1", "bad-2"}[i], f.UUID)
		assert.False(t, f.MayBeStored)
		refused := errorAs[*publish.RefusedError](t, f.Err)
		assert.Contains(t, refused.Error(), "PRECONDITION_FAILED")
		assert.Contains(t, refused.Error(), text)
	}
	stored := map[string]bool{}
	for _, d := range broker.Drain(topic) {
		stored[string(d.Body)] = true
	}
	assert.Len(t, stored, 8*50+4)
	assert.NotContains(t, stored, "bad-1")
	assert.NotContains(t, stored, "bad-2")
}

// A topic whose exchange would have a name of the broker's own: no permission helps.
func TestPublisher_ReservedName(t *testing.T) {
	t.Parallel()
	conf := amqp.NewDurablePubSubConfig(brokertest.URI(t), amqp.GenerateQueueNameTopicName)
	publisher := newPublisher(t, conf, amqpretry.Options{})
	began := time.Now()
	err := publisher.Publish("amq.mine", watermillMessages("4f1c7")...)
	assert.Less(t, time.Since(began), 10*time.Second, "another attempt helps no more")
	require.ErrorContains(t, err, "names that begin with amq. are the broker's own")
	assert.NotContains(t, err.Error(), "permission")
	assert.Equal(t, 1, strings.Count(err.Error(), "4f1c7"), err.Error())
	assert.Equal(t, 1, strings.Count(err.Error(), "the broker's own"), err.Error())
}

// RabbitMQ takes seconds to refuse a password: who waits no longer is told what it waited for.
func TestPublisher_WrongPassword(t *testing.T) {
	t.Parallel()
	uri := must(url.Parse(brokertest.URI(t)))(t)
	uri.User = url.UserPassword("nobody", "wrong")
	publisher := newPublisher(t, amqp.NewDurableQueueConfig(uri.String()),
		amqpretry.Options{Publisher: publish.Options{Timeout: 500 * time.Millisecond}})
	err := publisher.Publish(uniqueName("nowhere"), watermillMessages("a")...)
	require.ErrorContains(t, err, "still connecting to RabbitMQ")
	await.Until(t, func() bool {
		err = publisher.Publish(uniqueName("nowhere"), watermillMessages("a")...)
		return strings.Contains(err.Error(), "username or password not allowed")
	}, "the broker's answer")
}

// What cannot be published at all is an error before anything is.
func TestPublisher_NothingPublished(t *testing.T) {
	t.Parallel()
	uri, broker, topic := newTopic(t)
	publisher := newPublisher(t, amqp.NewDurableQueueConfig(uri), amqpretry.Options{})

	large := watermillMessages("a", "large")
	large[1].Metadata["much"] = strings.Repeat("x", 200<<10)
	tooLarge := errorAs[*publish.TooLargeError](t, publisher.Publish(topic, large...))
	assert.Equal(t, "large", tooLarge.UUID)

	long := watermillMessages("a", "long")
	long[1].Metadata[strings.Repeat("k", 300)] = "v"
	require.ErrorAs(t, publisher.Publish(topic, long...), &tooLarge)

	name := errorAs[*topology.NameError](t, publisher.Publish("", watermillMessages("a")...))
	require.ErrorAs(t, publisher.Publish(strings.Repeat("q", 256), watermillMessages("a")...), &name)
	require.NoError(t, publisher.Publish(topic))
	assert.Equal(t, 0, broker.Depth(topic))

	_, err := adapter.New(amqp.NewDurableQueueConfig(uri), amqpretry.Options{
		Publisher: publish.Options{Timeout: -1}})
	require.ErrorContains(t, err, "Options.Publisher.Timeout")
	require.ErrorAs(t, err, new(*config.FieldError))
}

// elapsing is a context whose deadline passes when the test says so.
type elapsing struct {
	context.Context
	elapsed chan struct{}
}

func (c elapsing) Done() <-chan struct{} { return c.elapsed }

func (c elapsing) Err() error {
	select {
	case <-c.elapsed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// A message's context ends the wait for it, and says so. That of one does not end the others'.
func TestPublisher_Context(t *testing.T) {
	t.Parallel()
	uri, broker, topic := newTopic(t)
	p := newProxy(t, uri)
	publisher := newPublisher(t, amqp.NewDurableQueueConfig(p.URI), withTimeout(await.Bound))
	require.NoError(t, publisher.Publish(topic, watermillMessages("first")...))

	ended, end := context.WithCancel(t.Context())
	end()
	late := watermillMessages("of an ended context")
	late[0].SetContext(ended) // as Watermill's Timeout leaves it
	require.NoError(t, publisher.Publish(topic, late...))

	p.stallAnswers(plainPublisher)
	ctx := elapsing{context.Background(), make(chan struct{})}
	messages := watermillMessages("bounded", "unbounded")
	messages[0].SetContext(ctx)
	result := make(chan error, 1)
	go func() { result <- publisher.Publish(topic, messages...) }()
	broker.Has(topic, 4)
	close(ctx.elapsed)
	broker.Has(topic, 4) // meanwhile the publisher hears of it
	p.resume()
	err := <-result
	failed := failures(t, err).Failed
	require.Len(t, failed, 1)
	assert.Equal(t, "bounded", failed[0].UUID)
	assert.True(t, failed[0].MayBeStored && !failed[0].RefusedEachTime)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	isFailure(t, err, publish.ErrUnconfirmed, "unconfirmed")
}

// A broker that is not there is waited for, so long and no longer, and nothing may be stored then.
// When it comes back, the same publisher goes on.
func TestPublisher_Outage(t *testing.T) {
	t.Parallel()
	uri, broker, topic := newTopic(t)
	p := newProxy(t, uri)
	publisher := newPublisher(t, amqp.NewDurableQueueConfig(p.URI), withTimeout(5*time.Second))
	p.refuse(anyone)
	began := time.Now()
	err := publisher.Publish(topic, watermillMessages("a")...)
	assert.GreaterOrEqual(t, time.Since(began), 5*time.Second)
	assert.Less(t, time.Since(began), 25*time.Second, "less than the default timeout")
	isFailure(t, err, publish.ErrUnconfirmed, "unconfirmed")
	assert.False(t, failures(t, err).Failed[0].MayBeStored, "it was never sent")
	p.allow(anyone)
	require.NoError(t, publisher.Publish(topic, watermillMessages("b")...))
	assert.Equal(t, []string{"b"}, rabbit.Bodies(broker.Drain(topic)))
}

// An exchange that an operator deletes is declared again. Its bindings are gone, so what no queue
// gets is an error and no success.
func TestPublisher_ExchangeDeleted(t *testing.T) {
	t.Parallel()
	uri, topic := brokertest.URI(t), uniqueName("publisher")
	broker, conf := newRabbit(t, uri), amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("x"))
	publisher := newPublisher(t, conf, amqpretry.Options{})
	t.Cleanup(func() { broker.Remove(topic) })
	require.ErrorIs(t, publisher.Publish(topic, watermillMessages("a")...), publish.ErrUnroutable)
	queue := topic + "-x"
	broker.Declare(queue, nil)
	bind := func() {
		broker.Do(func(channel *amqp091.Channel) error { return channel.QueueBind(queue, "", topic, false, nil) })
	}
	bind()
	require.NoError(t, publisher.Publish(topic, watermillMessages("b")...))
	broker.Remove(topic)
	require.ErrorIs(t, publisher.Publish(topic, watermillMessages("c")...), publish.ErrUnroutable)
	bind()
	require.NoError(t, publisher.Publish(topic, watermillMessages("d")...))
	assert.Equal(t, []string{"b", "d"}, rabbit.Bodies(broker.Drain(queue)))
}

type countedWrites struct {
	net.Conn
	n *atomic.Int64
}

func (c countedWrites) Write(b []byte) (int, error) {
	c.n.Add(1)
	return c.Conn.Write(b)
}

// Messages of many callers go to the socket together: 0.1 writes a message, where one waits for no
// other 0.7.
func TestPublisher_WritesTogether(t *testing.T) {
	t.Parallel()
	var writes atomic.Int64
	conf, topic := amqp.NewDurableQueueConfig(brokertest.URI(t)), uniqueName("publisher")
	wrapConnections(&conf, func(conn net.Conn) net.Conn { return countedWrites{conn, &writes} })
	newRabbit(t, brokertest.URI(t)).Declare(topic, nil)
	publisher := newPublisher(t, conf, amqpretry.Options{})
	require.NoError(t, publisher.Publish(topic, watermillMessages("first")...))
	const callers, each = 64, 50
	before := writes.Load()
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range each {
				assert.NoError(t, publisher.Publish(topic, watermillMessages("a")...))
			}
		})
	}
	wg.Wait()
	perMessage := float64(writes.Load()-before) / (callers * each)
	t.Logf("%.2f writes a message", perMessage)
	assert.Less(t, perMessage, 0.4)
}

// Many callers share a connection and four channels, and each gets its own answer.
func TestPublisher_Concurrent(t *testing.T) {
	t.Parallel()
	uri, broker, topic := newTopic(t)
	p := newProxy(t, uri)
	publisher := newPublisher(t, amqp.NewDurableQueueConfig(p.URI), amqpretry.Options{})
	const callers, each = 100, 30
	var wg sync.WaitGroup
	for i := range callers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := range each {
				to, wanted := topic, error(nil)
				if n%10 == 9 {
					to, wanted = topic+"-missing", publish.ErrUnroutable
				}
				assert.ErrorIs(t, publisher.Publish(to, watermillMessages(fmt.Sprintf("%d-%d", i, n))...), wanted)
			}
		}()
	}
	wg.Wait()
	assert.Equal(t, 1, p.dialled(plainPublisher), "connections")
	last, count := map[string]int{}, map[string]int{} // in the order of each caller
	for _, body := range rabbit.Bodies(broker.Drain(topic)) {
		caller, number, _ := strings.Cut(body, "-")
		n := must(strconv.Atoi(number))(t)
		assert.GreaterOrEqual(t, n, last[caller], "of caller %s", caller)
		last[caller] = n
		count[caller]++
	}
	assert.Len(t, count, callers)
	for caller, n := range count {
		assert.Equal(t, each-each/10, n, caller)
	}
}

// A call with more messages than a channel has room for keeps their order.
func TestPublisher_LargeCall(t *testing.T) {
	t.Parallel()
	uri, broker, topic := newTopic(t)
	publisher := newPublisher(t, amqp.NewDurableQueueConfig(uri), amqpretry.Options{})
	uuids := rabbit.Numbered("m", 5000)
	require.NoError(t, publisher.Publish(topic, watermillMessages(uuids...)...))
	assert.Equal(t, uuids, rabbit.Bodies(broker.Drain(topic)))
}

// Close waits for what is being published, and ends it when its time is over. Nothing is published
// after it.
func TestPublisher_Close(t *testing.T) {
	t.Parallel()
	uri, topic := brokertest.URI(t), uniqueName("publisher")
	newRabbit(t, uri).Declare(topic, nil)
	p := newProxy(t, uri)
	options := withTimeout(time.Minute)
	options.CloseTimeout = 500 * time.Millisecond
	publisher := newPublisher(t, amqp.NewDurableQueueConfig(p.URI), options)
	require.NoError(t, publisher.Publish(topic, watermillMessages("a")...))
	p.stallAnswers(plainPublisher)
	result := make(chan error, 1)
	go func() { result <- publisher.Publish(topic, watermillMessages("b")...) }()
	newRabbit(t, uri).Has(topic, 2)
	began := time.Now()
	require.NoError(t, publisher.Close())
	assert.GreaterOrEqual(t, time.Since(began), options.CloseTimeout)
	assert.Less(t, time.Since(began), 9*time.Second, "less than the default, and than the timeout of the call")
	err := <-result
	require.ErrorIs(t, err, amqpretry.ErrClosed)
	assert.True(t, failures(t, err).Failed[0].MayBeStored)
	p.resume()
	require.ErrorIs(t, publisher.Publish(topic, watermillMessages("c")...), amqpretry.ErrClosed)
	require.NoError(t, publisher.Close())
}

// In an alarm of the broker a call ends in time with an error that says so, and its messages were
// not sent.
func TestPublisher_Alarm_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t)
	queue := newRabbit(t, broker.URI)
	topic := uniqueName("publisher")
	queue.Declare(topic, nil)
	publisher := newPublisher(t, amqp.NewDurableQueueConfig(broker.URI), withTimeout(3*time.Second))
	require.NoError(t, publisher.Publish(topic, watermillMessages("a")...))
	broker.Ctl("set_vm_memory_high_watermark", "0.0000001")
	// The broker blocks a connection at its first publish in an alarm, which it still takes or not.
	var blocked *publish.BlockedError
	await.Until(t, func() bool { return errors.As(publisher.Publish(topic, watermillMessages("b")...), &blocked) })
	assert.Contains(t, blocked.Reason, "memory")
	err := publisher.Publish(topic, watermillMessages("c")...)
	require.ErrorAs(t, err, &blocked)
	assert.Equal(t, "blocked", failures(t, err).ErrorType())
	assert.False(t, failures(t, err).Failed[0].MayBeStored)
	broker.Ctl("set_vm_memory_high_watermark", "0.4")
	queue.Publish(topic, rabbit.Message("the alarm is over", ""))
	require.NoError(t, publisher.Publish(topic, watermillMessages("d")...))
	bodies := rabbit.Bodies(queue.Drain(topic))
	assert.NotContains(t, bodies, "c")
	assert.Contains(t, bodies, "d")
}

// Some of many messages of a call are too large: the first tells how large they may be, and the
// others are not sent. So few of their neighbours are published twice.
func TestPublisher_ManyTooLarge_OwnBroker(t *testing.T) {
	t.Parallel()
	conf := filepath.Join(t.TempDir(), "rabbitmq.conf")
	require.NoError(t, os.WriteFile(conf, []byte("max_message_size = 100000\n"), 0o600))
	broker := brokertest.Start(t, "BROKER_CONF="+conf)
	client, topic := newRabbit(t, broker.URI), "orders"
	client.Declare(topic, amqp091.Table{"x-queue-type": "quorum"})
	publisher := newPublisher(t, amqp.NewDurableQueueConfig(broker.URI), amqpretry.Options{})
	const all, every = 3000, 176 // 17 are too large
	messages := watermillMessages(rabbit.Numbered("m", all)...)
	large := 0
	for i := every; i < all; i += every {
		messages[i].Payload = make([]byte, 200_000)
		large++
	}
	began := time.Now()
	err := publisher.Publish(topic, messages...)
	took := time.Since(began)
	require.Len(t, failures(t, err).Failed, large)
	stored := map[string]int{}
	for _, d := range client.Drain(topic) {
		stored[rabbit.UUID(d)]++
	}
	twice := 0
	for _, n := range stored {
		twice += n - 1
	}
	assert.Len(t, stored, all-large)
	t.Logf("%d too large: %d twice, %s", large, twice, took)
	assert.Less(t, twice, 350, "those on the channel that the first has cost: 176, where each cost one: 546")
}

type slowWriter struct {
	net.Conn
	rate int
}

func (c slowWriter) Write(p []byte) (written int, err error) {
	for len(p) > 0 && err == nil {
		n := 0
		n, err = c.Conn.Write(p[:min(len(p), 4096)])
		<-time.After(time.Duration(n) * time.Second / time.Duration(c.rate))
		written, p = written+n, p[n:]
	}

	return written, err
}

func slowly(uri string, rate int) amqp.Config {
	conf := amqp.NewDurableQueueConfig(uri)
	wrapConnections(&conf, func(conn net.Conn) net.Conn { return slowWriter{conn, rate} })
	conf.Connection.AmqpConfig.Heartbeat = 2 * time.Second // a machine may stand still for three before it is lost

	return conf
}

// On a slow link, calls that take several heartbeats are confirmed, all at the same time; and one
// that is over its time says what is stored, and leaves a publisher that works.
func TestPublisher_SlowLink(t *testing.T) {
	t.Parallel()
	uri, topic := brokertest.URI(t), uniqueName("slow")
	broker := newRabbit(t, uri)
	broker.Declare(topic, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})

	t.Run("enough time", func(t *testing.T) {
		publisher := newPublisher(t, slowly(uri, 1<<19), withTimeout(await.Bound))
		var callers sync.WaitGroup
		for i := range 8 {
			callers.Go(func() {
				assert.NoError(t, publisher.Publish(topic, largeMessages(i*10, 10)...))
			})
		}
		callers.Wait()
		assert.Len(t, broker.Drain(topic), 80)
	})

	t.Run("too little time", func(t *testing.T) {
		publisher := newPublisher(t, slowly(uri, 1<<18), withTimeout(8*time.Second))
		messages := largeMessages(0, 240) // for a minute
		began := time.Now()
		err := publisher.Publish(topic, messages...)
		assert.Less(t, time.Since(began), 25*time.Second)
		maybe, not := map[string]bool{}, map[string]bool{}
		for _, f := range failures(t, err).Failed {
			maybe[f.UUID], not[f.UUID] = f.MayBeStored, !f.MayBeStored
		}
		require.NotEmpty(t, not)
		require.NoError(t, publisher.Publish(topic, watermillMessages("after")...), "the link is free again")

		stored := map[string]int{}
		for _, d := range broker.Drain(topic) {
			stored[rabbit.Text(d, amqp.DefaultMessageUUIDHeaderKey)]++
		}
		for _, m := range messages {
			switch {
			case maybe[m.UUID]:
			case not[m.UUID]:
				assert.Zero(t, stored[m.UUID], m.UUID)
			default:
				assert.Equal(t, 1, stored[m.UUID], m.UUID)
			}
		}
		assert.Equal(t, 1, stored["after"])
	})
}

func largeMessages(from, n int) []*message.Message {
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = message.NewMessage(strconv.Itoa(from+i), bytes.Repeat([]byte("x"), 64<<10))
	}

	return messages
}
