package bench

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// BenchmarkExactAccuracy measures how late retries with exact delays are, beside retries with a
// retry queue for each of these delays, and beside these retry queues alone.
func BenchmarkExactAccuracy(b *testing.B) {
	seconds, delays := report.Scaled(b, 30, 2), exactDelays(b)
	t := report.Table{
		Title: "How late retries with exact delays are",
		Notes: []string{
			fmt.Sprintf("Milliseconds from the end of the delay, counted from when the handler fails, to its next "+
				"call. Each message fails once, and its handler asks for one of %d delays with RetryAfter. Messages "+
				"come at a steady rate for %d s, of which the first tenth is left out. Quorum queues. A single run "+
				"each.", len(delays), seconds),
			"*Exact* are the retrier's exact delays: *waits* is in how many queues of the ladder a message waits " +
				"before its landing queue. *Tiers* is the retrier with a retry queue for each of these delays. " +
				"*Bare* is the least that a TTL queue takes: a raw amqp091 publisher, those retry queues, a raw " +
				"consumer.",
			"All three run at the same time, each at this rate; at 1000 per second they take turns.",
		},
		Head: []string{"retries/s", "delay", "waits", "exact p50", "exact p99", "exact max", "tiers p50", "tiers p99",
			"tiers max", "bare p50", "bare p99", "bare max"},
	}
	for _, rate := range rates(b) {
		b.Run(fmt.Sprint(rate), func(b *testing.B) {
			once(b, func() {
				messages := seconds * rate
				exact, tiers, bare := newWaits(messages, delays...), newWaits(messages, delays...),
					newWaits(messages, delays...)
				all := []waiter{
					{exact, retrierWith(exactPolicy(delays))}, {tiers, retrierWith(tierPolicy(delays))},
					{bare, bareWith(tierPolicy(delays))},
				}
				at := len(all) // a time
				if rate >= 1000 {
					at = 1
				}
				for group := range slices.Chunk(all, at) {
					atRate(b, rate, messages, group)
				}

				for _, delay := range delays {
					late := exact.millisecondsOf(delay, messages/10)
					require.GreaterOrEqual(b, slices.Min(late), -1.0, "a retry was early, by milliseconds")
					e, t1, r := percentiles(late), percentiles(tiers.millisecondsOf(delay, messages/10)),
						percentiles(bare.millisecondsOf(delay, messages/10))
					t.Add(rate, delay, hops(delay), e[0], e[1], e[2], t1[0], t1[1], t1[2], r[0], r[1], r[2])
				}
				for name, w := range map[string]*waits{"exact": exact, "tiers": tiers, "bare": bare} {
					p := percentiles(w.milliseconds(messages / 10))
					b.ReportMetric(p[0], name+":p50-ms")
					b.ReportMetric(p[1], name+":p99-ms")
				}
			})
		})
	}
	t.WriteOn(b, brokertest.URI(b))
}

// exactDelays are of one, two and three digits.
func exactDelays(b *testing.B) []time.Duration {
	b.Helper()
	if report.Scale(b) < 0.1 {
		return []time.Duration{time.Second, 1300 * time.Millisecond, 2 * time.Second}
	}

	return []time.Duration{time.Second, 3 * time.Second, 7 * time.Second, 12300 * time.Millisecond, 30 * time.Second,
		37 * time.Second, 59900 * time.Millisecond}
}

// exactPolicy has the default ladder, but for its name: it is removed after the benchmark.
func exactPolicy(delays []time.Duration) config.Policy {
	return config.Policy{Delays: delays, Strategy: config.StrategyLadder,
		Ladder: config.Ladder{Prefix: "bench-" + watermill.NewShortUUID()}}
}

func tierPolicy(delays []time.Duration) config.Policy { return config.Policy{Delays: delays} }

// hops is in how many queues of the default ladder a message waits.
func hops(delay time.Duration) int {
	n := 0
	for _, digit := range config.RetryLadder().Digits(delay) {
		if digit != 0 {
			n++
		}
	}

	return n
}

// waiter is a way to have numbered messages wait. start gives what publishes one of them.
type waiter struct {
	waits *waits
	start func(*testing.B, *waits) (publish func(channel *amqp091.Channel, i int), stop func())
}

// retrierWith is the retrier with a handler that fails each message once.
func retrierWith(policy config.Policy) func(*testing.B, *waits) (func(*amqp091.Channel, int), func()) {
	return func(b *testing.B, w *waits) (func(*amqp091.Channel, int), func()) {
		b.Helper()
		queue, stop := startWaiting(b, "quorum", policy, amqpretry.Options{}, w)

		return func(channel *amqp091.Channel, i int) { publishNumbered(b, channel, queue, i) }, stop
	}
}

// bareWith is a TTL queue for each delay, without the retrier.
func bareWith(policy config.Policy) func(*testing.B, *waits) (func(*amqp091.Channel, int), func()) {
	return func(b *testing.B, w *waits) (func(*amqp091.Channel, int), func()) {
		b.Helper()
		retryQueue := startBare(b, "quorum", policy, w)

		return func(channel *amqp091.Channel, i int) {
			w.called(b, i)
			publishNumbered(b, channel, retryQueue(w.delayOf(i)), i)
		}, func() {}
	}
}

// atRate publishes messages at a steady rate for each of the waiters, at the same time, and waits
// until all are back.
func atRate(b *testing.B, rate, messages int, all []waiter) {
	b.Helper()
	publish := make([]func(*amqp091.Channel, int), len(all))
	for i, w := range all {
		var stop func()
		publish[i], stop = w.start(b, w.waits)
		defer stop()
	}
	channel := open(b)
	defer channel.Close()

	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for i := range messages {
		<-tick.C
		for _, p := range publish {
			p(channel.Channel, i)
		}
	}
	for _, w := range all {
		w.waits.await(b, slices.Max(w.waits.delays)+time.Minute)
	}
}
