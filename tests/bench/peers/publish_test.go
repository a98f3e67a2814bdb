package peers

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"github.com/wagslane/go-rabbitmq"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// publishWindow is how many messages of raw are on their way at a time.
const publishWindow = 1024

var publishBody = []byte(strings.Repeat("x", 300))

// publish publishes messages, and returns when all are confirmed.
type publish func(uuids []string) error

// BenchmarkPublish measures publishers that wait for the broker's confirmation, by how many
// goroutines call them and how many messages each call has, against amqp091-go with 1,024 on their
// way.
func BenchmarkPublish(b *testing.B) {
	most := report.Scaled(b, 60_000, 600)
	t := &report.Table{
		Title: "Publishing",
		Notes: []string{fmt.Sprintf("Messages of %d bytes to a quorum queue, persistent, mandatory where the "+
			"publisher can, each call waiting for its confirms. Raw: amqp091-go from one goroutine, with so many on "+
			"their way at a time; 64 and 256 are as many as that number of goroutines have with one message a call.",
			len(publishBody))},
		Head: []string{"publisher", "goroutines", "messages a call", "messages per second", "of raw"},
	}
	q := newPublishQueue(b)
	type load struct{ goroutines, batch int }
	loads := []load{{1, 1}, {8, 1}, {64, 1}, {256, 1}, {1, 1000}, {8, 100}}
	raw := func(window int) func(b *testing.B) figures {
		return func(b *testing.B) figures { return q.raw(b, most, window) }
	}
	contenders := []report.Contender{{"raw", raw(publishWindow)}, {"raw/64", raw(64)}, {"raw/256", raw(256)}}
	makers := []struct {
		name string
		make func(b *testing.B) (publish, func())
		most int // messages: fewer for the slow ones
	}{
		{"NewPublisher", q.own, most}, {"watermill-amqp", q.stock(0), most / 30},
		{"watermill-amqp, pool of 16", q.stock(16), most / 6}, {"go-rabbitmq", q.goRabbitMQ, most},
	}
	for _, m := range makers {
		for _, l := range loads {
			messages := min(m.most, max(2000*l.goroutines, 60*l.batch))
			contenders = append(contenders, report.Contender{fmt.Sprintf("%s/%d/%d", m.name, l.goroutines, l.batch),
				func(b *testing.B) figures { return q.measure(b, m.make, l.goroutines, l.batch, messages) }})
		}
	}
	b.Run("publish", func(b *testing.B) {
		all := report.Compare(b, contenders...)
		t.Add(fmt.Sprintf("raw, %d on their way", publishWindow), 1, "", all.Median("raw", unit), 1.0)
		for _, window := range []string{"64", "256"} {
			name := "raw/" + window
			t.Add("raw, "+window+" on their way", 1, "", all.Median(name, unit), all.Ratio(name, "raw", unit))
		}
		for _, m := range makers {
			for _, l := range loads {
				name := fmt.Sprintf("%s/%d/%d", m.name, l.goroutines, l.batch)
				t.Add(m.name, l.goroutines, l.batch, all.Median(name, unit), all.Ratio(name, "raw", unit))
			}
		}
	})
	t.WriteOn(b, brokertest.URI(b))
}

// publishQueue is the queue that all publish to.
type publishQueue struct {
	name    string
	uri     string
	channel *amqp091.Channel
}

func newPublishQueue(b *testing.B) *publishQueue {
	b.Helper()
	q := &publishQueue{name: "bench-" + watermill.NewShortUUID(), uri: brokertest.URI(b)}
	client := rabbit.New(b, q.uri)
	client.Declare(q.name, amqp091.Table{"x-queue-type": "quorum"})
	q.channel = client.Channel()

	return q
}

// emptied fails if the queue does not have so many messages, and empties it.
func (q *publishQueue) emptied(b *testing.B, messages int) {
	b.Helper()
	purged, err := q.channel.QueuePurge(q.name, false)
	require.NoError(b, err)
	require.Equal(b, messages, purged, "stored messages")
	runtime.GC()
}

// raw is the most that one channel of amqp091-go does.
func (q *publishQueue) raw(b *testing.B, messages, window int) figures {
	b.Helper()
	connection, err := amqp091.Dial(q.uri)
	require.NoError(b, err)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(b, err)
	require.NoError(b, channel.Confirm(false))
	began := time.Now()
	onTheirWay := make([]*amqp091.DeferredConfirmation, window)
	for i := range messages + window {
		if sent := onTheirWay[i%window]; sent != nil {
			require.True(b, sent.Wait())
		}
		onTheirWay[i%window] = nil
		if i < messages {
			msg := amqp091.Publishing{Headers: amqp091.Table{"_watermill_message_uuid": strconv.Itoa(i)},
				Body: publishBody, DeliveryMode: amqp091.Persistent}
			onTheirWay[i%window], err = channel.PublishWithDeferredConfirm("", q.name, true, false, msg)
			require.NoError(b, err)
		}
	}
	took := time.Since(began)
	q.emptied(b, messages)

	return rate(messages, took)
}

// measure has goroutines publish messages.
func (q *publishQueue) measure(b *testing.B, make func(b *testing.B) (publish, func()), goroutines, batch, messages int,
) figures {
	b.Helper()
	do, end := make(b)
	defer end()
	require.NoError(b, do([]string{"first"})) // connected, declared
	q.emptied(b, 1)
	var next atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range goroutines {
		wg.Go(func() {
			for {
				first := int(next.Add(int64(batch))) - batch
				if first >= messages {
					return
				}
				uuids := []string{}
				for i := first; i < min(first+batch, messages); i++ {
					uuids = append(uuids, strconv.Itoa(i))
				}
				if err := do(uuids); err != nil {
					b.Errorf("publish: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	q.emptied(b, messages)

	return rate(messages, took)
}

func watermillMessages(uuids []string) []*message.Message {
	messages := make([]*message.Message, len(uuids))
	for i, uuid := range uuids {
		messages[i] = message.NewMessage(uuid, publishBody)
	}

	return messages
}

func (q *publishQueue) own(b *testing.B) (publish, func()) {
	b.Helper()
	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig(q.uri), amqpretry.Options{Logger: watermill.NopLogger{}})
	require.NoError(b, err)
	publisher, err := retrier.NewPublisher()
	require.NoError(b, err)

	return func(uuids []string) error { return publisher.Publish(q.name, watermillMessages(uuids)...) },
		func() { _ = retrier.Close() }
}

func (q *publishQueue) stock(pool int) func(b *testing.B) (publish, func()) {
	return func(b *testing.B) (publish, func()) {
		b.Helper()
		conf := amqp.NewDurableQueueConfig(q.uri)
		conf.Publish.ConfirmDelivery, conf.Publish.ChannelPoolSize = true, pool
		publisher, err := amqp.NewPublisher(conf, watermill.NopLogger{})
		require.NoError(b, err)

		return func(uuids []string) error { return publisher.Publish(q.name, watermillMessages(uuids)...) },
			func() { _ = publisher.Close() }
	}
}

func (q *publishQueue) goRabbitMQ(b *testing.B) (publish, func()) {
	b.Helper()
	connection, err := rabbitmq.NewConn(q.uri, rabbitmq.WithConnectionOptionsLogger(quiet{}))
	require.NoError(b, err)
	publisher, err := rabbitmq.NewPublisher(connection, rabbitmq.WithPublisherOptionsConfirm,
		rabbitmq.WithPublisherOptionsLogger(quiet{}))
	require.NoError(b, err)
	publishAll := func(uuids []string) error {
		var sent []rabbitmq.PublisherConfirmation
		for _, uuid := range uuids {
			confirmation, err := publisher.PublishWithDeferredConfirmWithContext(context.Background(), publishBody,
				[]string{q.name}, rabbitmq.WithPublishOptionsMandatory, rabbitmq.WithPublishOptionsPersistentDelivery,
				rabbitmq.WithPublishOptionsHeaders(rabbitmq.Table{"_watermill_message_uuid": uuid}))
			if err != nil {
				return err
			}
			sent = append(sent, confirmation)
		}
		for _, confirmations := range sent {
			for _, c := range confirmations {
				if !c.Wait() {
					return fmt.Errorf("nacked")
				}
			}
		}

		return nil
	}

	return publishAll, func() {
		publisher.Close()
		_ = connection.Close()
	}
}
