package bench

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// BenchmarkForwards measures failing alone: every message fails once, and goes to a retry queue
// where it stays.
func BenchmarkForwards(b *testing.B) {
	t := report.Table{
		Title: "Failures forwarded",
		Notes: []string{
			"Every message fails once: its copy goes through a headers exchange to a retry queue of 1 h, and when " +
				"the broker has confirmed it, the original is acknowledged. Prefetch 100. The first 100 messages are " +
				"the warm-up; the time is that from their last acknowledgement to the last of all. At the end each " +
				"message is in the retry queue, once.",
			"The limit is the same with amqp091-go alone, over two connections like the retrier's: mandatory " +
				"publishes of copies that have the retrier's headers, pipelined up to the prefetch, and one " +
				"acknowledgement for as many as are confirmed. Watermill's publisher gets its messages from the same " +
				"bare consumer and publishes the same copies; without a pool it opens a channel for each. Without " +
				"confirms nobody knows what the broker has taken when the original is acknowledged.",
		},
		Head: []string{"main queue", "retry queue", "forwarded by", "msg/s", "of the limit"},
	}
	for _, way := range []struct {
		main, waiting string
		others        bool
	}{
		{"classic", "quorum", true},
		{"quorum", "quorum", true},
		{"classic", "classic", false},
	} {
		b.Run(fmt.Sprintf("%s to %s", way.main, way.waiting), func(b *testing.B) {
			const limit = "amqp091-go alone, the limit"
			ways := []forwarder{
				{limit, 3000, byHand},
				{"the retrier, 1 handler", 3000, byRetrier(1)},
				{"the retrier, 8 handlers", 3000, byRetrier(8)},
				{"the retrier, 64 handlers", 3000, byRetrier(64)},
			}
			if way.others {
				ways = append(ways,
					forwarder{"Watermill's publisher, no confirms", 300, byPublisher(false, 0)},
					forwarder{"Watermill's publisher, no confirms, pool of 8, 8 goroutines", 3000,
						byPublisher(false, 8)},
					forwarder{"Watermill's publisher, confirms", 300, byPublisher(true, 0)},
					forwarder{"Watermill's publisher, confirms, pool of 8, 8 goroutines", 3000, byPublisher(true, 8)})
			}
			policy := config.Policy{Delays: []time.Duration{time.Hour}, ClassicQueues: way.waiting == "classic"}
			headers := copied(b, way.main, policy)

			contenders := make([]contender, len(ways))
			for i, w := range ways {
				contenders[i] = contender{w.name, func(b *testing.B) figures {
					lap := newLap(forwardPrefetch, report.Scaled(b, w.messages, 50))
					l := newBacklog(b, way.main, policy, lap.warmUp+lap.messages)
					defer newClient(b).RemovePlan(l.plan)
					l.headers = headers
					w.forward(b, l, lap)
					l.verify(b)

					return lap.rate()
				}}
			}
			all := report.Compare(b, contenders...)
			for _, w := range ways {
				t.Add(way.main, way.waiting, w.name, all.Median(w.name, "msg/s"), all.Ratio(w.name, limit, "msg/s"))
			}
		})
	}
	t.WriteOn(b, brokertest.URI(b))
}

// forwarder is a way to bring the messages of a backlog into their retry queue.
type forwarder struct {
	name     string
	messages int
	forward  func(b *testing.B, l backlog, lap *lap)
}

// forwardPrefetch is everybody's.
const forwardPrefetch = 100

// byRetrier is a router with the retrier and a handler that fails.
func byRetrier(concurrency int) func(*testing.B, backlog, *lap) {
	return func(b *testing.B, l backlog, lap *lap) {
		options := amqpretry.Options{
			Policies:    config.Policies{Default: l.policy},
			Concurrency: concurrency,
			OnEvent: func(e retry.Event) {
				if e.Kind == retry.EventRetried { // confirmed and being acknowledged
					lap.add()
				}
			},
		}
		failure := errors.New("the warehouse does not answer")
		ownConsumer(options).consume(b, durable(b, l.queueType, forwardPrefetch), l.plan.Queue,
			func(*message.Message) error { return failure }, lap.done, time.Minute)
	}
}

// byHand is the limit: there is nothing but what has to be done. On fresh channels the tags of
// deliveries and publishes are the same.
func byHand(b *testing.B, l backlog, lap *lap) {
	deliveries, in := l.consume(b)
	defer in.Close()
	out := open(b)
	defer out.Close()
	require.NoError(b, out.Confirm(false))
	confirms := out.NotifyPublish(make(chan amqp091.Confirmation, forwardPrefetch))

	go func() {
		for d := range deliveries {
			_ = out.PublishWithContext(b.Context(), l.plan.RetryExchange, l.plan.Queue, true, false, amqp091.Publishing{
				Headers: l.headers, Body: d.Body, DeliveryMode: d.DeliveryMode,
			}) // one that fails is missed below
		}
	}()
	go func() {
		for c := range confirms {
			if !c.Ack {
				b.Errorf("copy %d was refused", c.DeliveryTag)
			}
			if len(confirms) == 0 {
				_ = in.Ack(c.DeliveryTag, true)
			}
			lap.add()
		}
	}()
	lap.wait(b, time.Minute)
}

// byPublisher is Watermill's, from as many goroutines as its pool has channels.
func byPublisher(confirms bool, pool int) func(*testing.B, backlog, *lap) {
	return func(b *testing.B, l backlog, lap *lap) {
		conf := durable(b, l.queueType, forwardPrefetch)
		conf.Exchange.GenerateName = func(string) string { return l.plan.RetryExchange }
		conf.Exchange.Type, conf.Exchange.Durable = amqp091.ExchangeHeaders, true
		conf.Publish.ConfirmDelivery, conf.Publish.ChannelPoolSize = confirms, pool
		publisher, err := amqp.NewPublisher(conf, watermill.NopLogger{})
		require.NoError(b, err)
		defer func() { require.NoError(b, publisher.Close()) }()

		metadata := message.Metadata{}
		for key, value := range l.headers {
			if key != amqp.DefaultMessageUUIDHeaderKey {
				metadata[key] = value.(string)
			}
		}
		deliveries, in := l.consume(b)
		defer in.Close()
		for range max(1, pool) {
			go func() {
				for d := range deliveries {
					msg := message.NewMessage(watermill.NewUUID(), d.Body)
					msg.Metadata = metadata
					if err := publisher.Publish(l.plan.Queue, msg); err != nil {
						b.Errorf("cannot publish: %v", err)
					}
					_ = d.Ack(false)
					lap.add()
				}
			}()
		}
		lap.wait(b, time.Minute)
	}
}

// backlog is a main queue full of messages that are all to fail, with its retry topology.
type backlog struct {
	queueType string
	policy    config.Policy
	plan      topology.Plan
	messages  int
	headers   amqp091.Table // of a copy
}

func newBacklog(b *testing.B, queueType string, policy config.Policy, messages int) backlog {
	b.Helper()
	queue := newQueue(b, queueType, policy)
	plan := planOf(b, queue, policy)
	channel := open(b)
	defer channel.Close()
	require.NoError(b, plan.Declare(channel))
	fill(b, queue, messages, nil)

	return backlog{queueType: queueType, policy: policy, plan: plan, messages: messages}
}

// copied gives the headers of a copy that the retrier has made.
func copied(b *testing.B, queueType string, policy config.Policy) amqp091.Table {
	b.Helper()
	l := newBacklog(b, queueType, policy, 1)
	byRetrier(1)(b, l, newLap(0, 1))
	l.verify(b)

	channel := open(b)
	defer channel.Close()
	d, found, err := channel.Get(l.plan.Queues[0].Name, true)
	require.NoError(b, err)
	require.True(b, found)

	maps.DeleteFunc(d.Headers, func(key string, _ any) bool { return strings.HasPrefix(key, "x-") }) // the broker's own

	return d.Headers
}

// consume gets the messages, without the retrier and without Watermill.
func (l backlog) consume(b *testing.B) (<-chan amqp091.Delivery, *channel) {
	b.Helper()
	channel := open(b)
	require.NoError(b, channel.Qos(forwardPrefetch, 0, false))
	deliveries, err := channel.Consume(l.plan.Queue, "", false, false, false, false, nil)
	require.NoError(b, err)

	return deliveries, channel
}

// verify checks that every message is in the retry queue, once. Some may be in the main queue as
// well: RabbitMQ may not have carried out the last acknowledgements for a quorum queue when their
// connection closes, and delivers those messages again.
func (l backlog) verify(b *testing.B) {
	b.Helper()
	channel := open(b)
	defer channel.Close()
	require.EventuallyWithT(b, func(t *assert.CollectT) { // counts of quorum queues are late
		q, err := channel.QueueDeclarePassive(l.plan.Queues[0].Name, true, false, false, false, nil)
		require.NoError(t, err)
		require.Equal(t, l.messages, q.Messages, "in the retry queue")
	}, 30*time.Second, 20*time.Millisecond)
}

// channel is one with a connection of its own.
type channel struct {
	*amqp091.Channel
	connection *amqp091.Connection
}

func open(b *testing.B) *channel {
	b.Helper()
	connection := dial(b)
	c, err := connection.Channel()
	require.NoError(b, err)

	return &channel{c, connection}
}

// Close ends both; what is acknowledged before is written.
func (c *channel) Close() { _ = c.connection.Close() }
