package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// BenchmarkTopics measures what it takes to serve many topics: the time to start, and the broker's
// memory.
func BenchmarkTopics(b *testing.B) {
	t := report.Table{
		Title: "Very many topics",
		Notes: []string{
			"Seconds from making the subscriber until a message has come from the queue of each topic; all are " +
				"subscribed to one after the other, as a Watermill router does. *First* with nothing declared, " +
				"*again* when all is there. Memory is what the broker's Erlang machine has in use above what it had " +
				"before, after a collection of garbage. Main queues are classic; the retrier has the default policy " +
				"of 5 delays. A single run each, on a broker of its own.",
		},
		Head: []string{"topics", "retry queues", "first / stock", "again / stock", "first, s", "again, s",
			"broker, MiB", "broker, KiB per topic", "client, KiB per topic"},
	}
	reference := map[int]figures{}
	for _, c := range []struct {
		name    string
		connect func(*testing.B) (subscriber message.Subscriber, stop func() error)
	}{
		{"none: stock", openStock},
		{"own", func(b *testing.B) (message.Subscriber, func() error) { return openRetrier(b, config.StrategyQueues) }},
		{"shared", func(b *testing.B) (message.Subscriber, func() error) {
			return openRetrier(b, config.StrategyShared)
		}},
	} {
		b.Run(report.Unit(c.name), func(b *testing.B) {
			once(b, func() {
				broker := newBroker(b)
				_, stop := serve(b, []string{"warm-up"}, c.connect)
				stop()
				for _, n := range numbersOfTopics(b) {
					topics := make([]string, n)
					for i := range topics {
						topics[i] = fmt.Sprintf("bench-%d-%d", n, i)
					}
					before, clientBefore := brokerMiB(b, broker), clientMiB()

					f := figures{}
					f["first-s"], stop = serve(b, topics, c.connect)
					f["client-KiB"] = (clientMiB() - clientBefore) * 1024 / float64(n)
					f["broker-MiB"] = brokerMiB(b, broker) - before
					stop()
					f["again-s"], stop = serve(b, topics, c.connect)
					stop()

					if reference[n] == nil {
						reference[n] = f
					}
					t.Add(n, c.name, f["first-s"]/reference[n]["first-s"], f["again-s"]/reference[n]["again-s"],
						f["first-s"], f["again-s"],
						f["broker-MiB"], f["broker-MiB"]*1024/float64(n), f["client-KiB"])
					for unit, value := range f {
						b.ReportMetric(value, strconv.Itoa(n)+":"+unit)
					}
				}
			})
		})
	}
	t.WriteOn(b, brokertest.URI(b))
}

// numbersOfTopics go as far as SCALE leaves time for.
func numbersOfTopics(b *testing.B) []int {
	b.Helper()
	switch s := report.Scale(b); {
	case s >= 0.5:
		return []int{1, 10, 100, 1000}
	case s >= 0.1:
		return []int{1, 10, 100}
	default:
		return []int{10}
	}
}

func openStock(b *testing.B) (message.Subscriber, func() error) {
	b.Helper()
	return stock(b, nil, durable(b, "classic", amqpretry.DefaultPrefetch))
}

func openRetrier(b *testing.B, strategy config.Strategy) (message.Subscriber, func() error) {
	b.Helper()
	options := amqpretry.Options{Policies: config.Policies{Default: config.Policy{Strategy: strategy}}}
	return ownConsumer(options)(b, newRouter(b), durable(b, "classic", amqpretry.DefaultPrefetch))
}

// serve subscribes to all topics and gives the seconds until a message has come from each. stop
// stops it.
func serve(b *testing.B, topics []string, connect func(*testing.B) (message.Subscriber, func() error)) (seconds float64,
	stop func()) {
	b.Helper()
	began := time.Now()
	subscriber, closeAll := connect(b)
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()

	var all sync.WaitGroup
	for _, topic := range topics {
		messages, err := subscriber.Subscribe(context.WithoutCancel(ctx), topic)
		require.NoError(b, err)
		all.Go(func() {
			select {
			case msg := <-messages:
				msg.Ack()
			case <-ctx.Done():
			}
		})
	}
	oneEach(b, topics)
	all.Wait()
	require.NoError(b, ctx.Err(), "a topic is not served")

	return time.Since(began).Seconds(), func() { require.NoError(b, closeAll()) }
}

// oneEach publishes a message to each queue.
func oneEach(b *testing.B, queues []string) {
	b.Helper()
	channel := open(b)
	defer channel.Close()
	for _, queue := range queues {
		publishNumbered(b, channel.Channel, queue, 0)
	}
}
