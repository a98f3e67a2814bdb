package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/far"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// BenchmarkConcurrency measures what more handlers at a time are worth, by how long one takes.
func BenchmarkConcurrency(b *testing.B) {
	t := report.Table{
		Title: "Concurrency",
		Notes: []string{
			"The retrier's subscriber by Options.Concurrency, with handlers that wait for 0, 1 and 10 ms and " +
				"succeed. Prefetch 100; as many messages as take about a second, after one for each handler as the " +
				"warm-up. Ideal is one message per handler and waiting time; what handlers of 0 ms reach is the most " +
				"that machine and broker can do.",
		},
		Head: []string{
			"queue", "Concurrency", "0 ms: msg/s", "to 1", "1 ms: msg/s", "to 1", "of the ideal", "10 ms: msg/s",
			"to 1", "of the ideal",
		},
	}
	for _, queueType := range queueTypes {
		b.Run(queueType, func(b *testing.B) {
			var contenders []contender
			for _, takes := range handlerTimes {
				for _, concurrency := range concurrencies {
					contenders = append(contenders, contender{concurrent(takes, concurrency),
						func(b *testing.B) figures {
							return consumeConcurrently(b, 0, queueType, takes, concurrency, 100)
						}})
				}
			}
			all := report.Compare(b, contenders...)

			for _, concurrency := range concurrencies {
				row := []any{queueType, concurrency}
				for _, takes := range handlerTimes {
					name := concurrent(takes, concurrency)
					rate := all.Median(name, "msg/s")
					row = append(row, rate, all.Ratio(name, concurrent(takes, 1), "msg/s"))
					if takes > 0 {
						row = append(row, rate*takes.Seconds()/float64(concurrency))
					}
				}
				t.Add(row...)
			}
		})
	}
	t.WriteOn(b, brokertest.URI(b))
}

var (
	handlerTimes  = []time.Duration{0, time.Millisecond, 10 * time.Millisecond}
	concurrencies = []int{1, 2, 4, 8, 16, 32, 64}
)

func concurrent(takes time.Duration, concurrency int) string {
	return fmt.Sprintf("%d of %s", concurrency, takes)
}

// consumeConcurrently works through a queue. A prefetch of 0 follows the handlers.
func consumeConcurrently(b *testing.B, roundTrip time.Duration, queueType string, takes time.Duration, concurrency,
	prefetch int) figures {
	const most = 6000 // a second's worth without waiting
	messages := most
	if takes > 0 {
		messages = min(most, concurrency*int(time.Second/takes))
	}
	lap := newLap(concurrency, report.Scaled(b, messages, 2*concurrency))

	policy := config.Policy{Mode: config.ModeDeadLetter}
	queue := newQueue(b, queueType, policy)
	fill(b, queue, lap.warmUp+lap.messages, nil)
	conf := durable(b, queueType, prefetch)
	conf.Connection.AmqpConfig = far.Config(roundTrip)
	options := amqpretry.Options{Policies: config.Policies{Default: policy}, Concurrency: concurrency}
	ownConsumer(options).consume(b, conf, queue, func(*message.Message) error {
		if takes > 0 {
			<-time.After(takes)
		}
		lap.add()

		return nil
	}, lap.done, time.Minute)

	return lap.rate()
}
