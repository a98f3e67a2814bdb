package bench

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// BenchmarkAccuracy measures how much later than its delay a retry comes, beside the broker's own
// share of it.
func BenchmarkAccuracy(b *testing.B) {
	seconds := report.Scaled(b, 60, 2)
	t := report.Table{
		Title: "How late retries are",
		Notes: []string{
			fmt.Sprintf("Milliseconds from the end of the delay (%s, counted from when the handler fails) to the "+
				"next call of the handler. Each message fails once; messages come at a steady rate for %d s, of "+
				"which the first tenth is left out. A single run each.", accuracyDelay, seconds),
			"*Bare* is the least that a TTL queue takes, at the same time and rate on the same broker: a raw amqp091 " +
				"publisher, a retry queue with the retrier's arguments, a raw consumer. *Added* is what the retrier " +
				"takes beyond it: the failure's way through the middleware and the retry exchange, and the router's " +
				"on the return.",
		},
		Head: []string{"queues", "retries/s", "added p50", "added p99", "retrier p50", "retrier p99", "retrier max",
			"bare p50", "bare p99", "bare max"},
	}
	for _, queueType := range queueTypes {
		for _, rate := range rates(b) {
			b.Run(fmt.Sprintf("%s/%d", queueType, rate), func(b *testing.B) {
				once(b, func() {
					retrier, bare := lateness(b, queueType, rate, seconds*rate)
					require.GreaterOrEqual(b, slices.Min(retrier), -1.0, "a retry was early, by milliseconds")

					p, r := percentiles(retrier), percentiles(bare)
					t.Add(queueType, rate, p[0]-r[0], p[1]-r[1], p[0], p[1], p[2], r[0], r[1], r[2])
					for i, name := range []string{"p50", "p99", "max"} {
						b.ReportMetric(p[i], "retrier:"+name+"-ms")
						b.ReportMetric(r[i], "bare:"+name+"-ms")
					}
				})
			})
		}
	}
	t.WriteOn(b, brokertest.URI(b))
}

// rates are the retries per second; one is enough to see that the benchmark works.
func rates(b *testing.B) []int {
	b.Helper()
	if report.Scale(b) < 0.1 {
		return []int{100}
	}

	return []int{10, 100, 1000}
}

const accuracyDelay = time.Second

var errRefused = errors.New("payment refused")

// percentiles are the middle, the 99th and the largest.
func percentiles(values []float64) [3]float64 {
	return [3]float64{percentile(values, 50), percentile(values, 99), slices.Max(values)}
}

// lateness fails messages at a steady rate, with the retrier and beside it without, and gives the
// milliseconds by which they came late.
func lateness(b *testing.B, queueType string, rate, messages int) (retrier, bare []float64) {
	b.Helper()
	policy := config.Policy{Delays: []time.Duration{accuracyDelay}, ClassicQueues: queueType == "classic"}
	forRetrier, forBare := newWaits(messages, accuracyDelay), newWaits(messages, accuracyDelay)

	queue, stop := startWaiting(b, queueType, policy, amqpretry.Options{}, forRetrier)
	defer stop()
	retryQueue := startBare(b, queueType, policy, forBare)(accuracyDelay)

	channel := open(b)
	defer channel.Close()
	publish := func(queue string, i int) { publishNumbered(b, channel.Channel, queue, i) }

	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for i := range messages {
		<-tick.C
		publish(queue, i)
		forBare.called(b, i)
		publish(retryQueue, i)
	}
	forRetrier.await(b, time.Minute)
	forBare.await(b, time.Minute)

	return forRetrier.milliseconds(messages / 10), forBare.milliseconds(messages / 10)
}

// publishNumbered publishes one message, and does not wait for a confirm.
func publishNumbered(b *testing.B, channel *amqp091.Channel, queue string, i int) {
	b.Helper()
	require.NoError(b, channel.PublishWithContext(b.Context(), "", queue, false, false, amqp091.Publishing{
		Headers: amqp091.Table{amqp.DefaultMessageUUIDHeaderKey: watermill.NewUUID(), numberHeader: strconv.Itoa(i)},
		Body:    payload, DeliveryMode: amqp091.Persistent,
	}))
}

// startWaiting starts a router with the retrier whose handler fails each message once. stop stops
// it.
func startWaiting(b *testing.B, queueType string, policy config.Policy, options amqpretry.Options,
	waits *waits) (queue string, stop func()) {
	b.Helper()
	queue = newQueue(b, queueType, policy)
	options.Policies.Default = policy
	retrier := newRetrier(b, durable(b, queueType, amqpretry.DefaultPrefetch), options)
	subscriber, err := retrier.NewSubscriber()
	require.NoError(b, err)

	router := newRouter(b)
	router.AddMiddleware(retrier.Middleware)
	router.AddConsumerHandler("orders", queue, subscriber, func(msg *message.Message) error {
		i := numberOf(msg)
		if waits.called(b, i) {
			return nil
		}

		return waits.failure(i)
	})
	stopRouter := start(b, router)

	return queue, func() {
		stopRouter()
		require.NoError(b, retrier.Close())
	}
}

// startBare declares the retry queues that the retrier would, and consumes what comes back from
// them. It gives the name of the one for a delay.
func startBare(
	b *testing.B, queueType string, policy config.Policy, waits *waits,
) (retryQueue func(time.Duration) string) {
	b.Helper()
	queue := newQueue(b, queueType, policy)
	plan, err := topology.New(queue, policy.WithDefaults(), topology.Names{})
	require.NoError(b, err)

	channel := newClient(b).Channel()
	require.NoError(b, plan.Declare(channel))
	require.NoError(b, channel.Qos(amqpretry.DefaultPrefetch, 0, false))
	deliveries, err := channel.ConsumeWithContext(b.Context(), queue, "", false, false, false, false, nil)
	require.NoError(b, err)
	go func() {
		for d := range deliveries {
			text, _ := d.Headers[numberHeader].(string)
			i, err := strconv.Atoi(text)
			if err != nil || d.Ack(false) != nil {
				return // what is missing is noticed
			}
			waits.called(b, i)
		}
	}()

	return func(delay time.Duration) string {
		i := slices.IndexFunc(plan.Queues, func(q topology.Queue) bool { return q.Delay == delay })
		return plan.Queues[i].Name
	}
}
