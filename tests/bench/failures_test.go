package bench

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// threeRetries is the policy: a message that fails for good is handled four times, 1 s apart.
var threeRetries = config.Policy{Delays: []time.Duration{time.Second}, Retries: 3}

// failurePrefetch leaves room for the failed deliveries whose copies are not confirmed yet.
const failurePrefetch = 100

// BenchmarkFailures is what healthy messages feel of those between them that fail for good.
func BenchmarkFailures(b *testing.B) {
	t := report.Table{
		Title: "Healthy messages between failing ones",
		Notes: []string{
			"Healthy messages handled per second, as a share of what the same consumer does when none fails " +
				"(retrier: the retrier's consumer; config: watermill-amqp's subscriber with the retrier's config and " +
				"middleware; the others: watermill-amqp's subscriber). Failing ones are spread evenly and fail for " +
				"good; three retries, 1 s apart, but for PoisonQueue and nack, which know no delay. One handler at a " +
				"time, prefetch " +
				strconv.Itoa(failurePrefetch) + ". Aim of the retrier: 0.9.",
			"Measured for a second over a backlog that outlasts it. With the retrier, its config and nack that " +
				"second begins 3.3 s after the first message: by then messages of all attempts come back all the " +
				"time, so it is what stays for as long as messages come, and not what a short backlog would show. " +
				"With Retry it is one failing message with the healthy ones around it.",
			"Handler 1ms: a healthy message takes a millisecond and a failing one fails at once: what is missing " +
				"from 1 is what it is held up. Handler 0s: none takes any time, so that client and broker have all " +
				"the machine to themselves, and each failing message is four calls and four copies: there the calls " +
				"alone leave no more than 0.96 with one in 100, and 0.69 with one in 10.",
			"PoisonQueue publishes with confirms and a pool of channels to a quorum queue, as the retrier does. Nack " +
				"spins, and stands still as soon as as many messages have failed as the prefetch allows, which with " +
				"one in 100 is after 10,000 messages and so not in the table; quorum queues from RabbitMQ 4.0 on " +
				"drop a failing message instead, without a trace, when it has come back 20 times.",
		},
		Head: []string{"queue", "handler", "failing", "retrier", "config", "PoisonQueue", "nack", "Retry",
			"retrier, none failing msg/s", "stock, none failing msg/s"},
	}
	defer t.WriteOn(b, brokertest.URI(b))

	for _, queueType := range queueTypes {
		for _, work := range []time.Duration{time.Millisecond, 0} {
			b.Run(fmt.Sprintf("%s/handler=%v", queueType, work), func(b *testing.B) {
				none := load{queueType: queueType, work: work, warmUp: 300 * time.Millisecond, window: time.Second}
				contenders := []contender{
					{"retrier", none.contender(ownConsumer(amqpretry.Options{}))},
					{"stock", none.contender(stock)},
				}
				for _, every := range failingOneIn {
					contenders = append(contenders, none.failing(every)...)
				}
				all := report.Compare(b, contenders...)

				for _, every := range failingOneIn {
					share := func(name, to string) any {
						if len(all[among(name, every)]) == 0 {
							return "" // not measured
						}

						return all.Ratio(among(name, every), to, healthyRate)
					}
					t.Add(queueType, work, fmt.Sprintf("1 in %d", every), share("retrier", "retrier"),
						share("config", "stock"), share("poison", "stock"), share("nack", "stock"),
						share("retry", "stock"),
						all.Median("retrier", healthyRate), all.Median("stock", healthyRate))
				}
			})
		}
	}
}

var failingOneIn = []int{100, 10}

const healthyRate = "msg/s"

// among names a contender among whose messages one in so many fails.
func among(name string, every int) string { return fmt.Sprintf("%s 1/%d", name, every) }

// load is what a consumer is given, and when it is measured.
type load struct {
	queueType string
	every     int           // one in so many fails; 0 for none
	work      time.Duration // that a healthy message takes
	warmUp    time.Duration // from the first message on
	window    time.Duration // or until all healthy ones are handled
	backlog   int           // 0 for one that outlasts the window
}

// failing are the contenders when one in so many messages fails.
func (l load) failing(every int) []contender {
	l.every = every
	steady, single := l, l
	steady.warmUp = 3300 * time.Millisecond
	single.warmUp, single.window, single.backlog = 0, 10*time.Second, every

	options := amqpretry.Options{Policies: config.Policies{Default: threeRetries}}
	all := []contender{{among("retrier", every), steady.contender(ownConsumer(options), requireAll)}}
	if l.work == 0 {
		return all // what the others have to wait for is not the machine
	}

	retry := middleware.Retry{MaxRetries: 3, InitialInterval: time.Second, Multiplier: 1, MaxInterval: time.Second}

	return append(all,
		contender{among("config", every), steady.contender(ownConfig(options), requireAll)},
		contender{among("poison", every), l.contender(poisoned())},
		contender{among("nack", every), steady.contender(stock)},
		contender{among("retry", every), single.contender(poisoned(retry.Middleware))},
	)
}

// poisoned is stock watermill-amqp with Watermill's PoisonQueue, and others inside of it.
func poisoned(inside ...message.HandlerMiddleware) way {
	return func(b *testing.B, router *message.Router, conf amqp.Config) (message.Subscriber, func() error) {
		b.Helper()
		conf.Publish.ConfirmDelivery = true
		conf.Publish.ChannelPoolSize = 1 // as many as there are handlers at a time
		publisher, err := amqp.NewPublisher(conf, router.Logger())
		require.NoError(b, err)
		poison, err := middleware.PoisonQueue(publisher, newQueue(b, "quorum", threeRetries))
		require.NoError(b, err)
		router.AddMiddleware(append([]message.HandlerMiddleware{poison}, inside...)...)
		subscriber, _ := stock(b, router, conf)

		return subscriber, publisher.Close
	}
}

var errFailing = errors.New("it fails for good")

// contender consumes in a way, and checks what is left.
func (l load) contender(w way, check ...func(b *testing.B, queue string, handled *tally,
	backlog int)) func(b *testing.B) figures {
	return func(b *testing.B) figures {
		b.Helper()
		scaled := func(d, least time.Duration) time.Duration {
			return time.Duration(report.Scaled(b, int(d), int(least)))
		}
		warmUp, window := scaled(l.warmUp, 0), scaled(l.window, 300*time.Millisecond)

		backlog := cmp.Or(l.backlog, max(int(l.most()*(warmUp+window).Seconds()), 1000))
		queue := newQueue(b, l.queueType, threeRetries)
		fill(b, queue, backlog, numbered)

		due := 0
		for i := range backlog {
			if !l.fails(i) {
				due++
			}
		}
		healthy := newTally(due)
		began, done := make(chan struct{}), make(chan struct{})
		var first sync.Once
		handle := func(msg *message.Message) error {
			first.Do(func() { close(began) })
			if l.fails(numberOf(msg)) {
				return errFailing
			}
			if l.work > 0 {
				<-time.After(l.work)
			}
			healthy.add(msg)

			return nil
		}

		var rate float64
		go func() {
			defer close(done)
			<-began
			<-time.After(warmUp)
			from, at := healthy.handled(), time.Now()
			if from == due {
				return // too soon: see below
			}
			select {
			case <-time.After(window):
			case <-healthy.all:
			}
			rate = float64(healthy.handled()-from) / time.Since(at).Seconds()
		}()
		w.consume(b, durable(b, l.queueType, failurePrefetch), queue, handle, done, time.Minute)
		require.False(b, rate == 0 && healthy.handled() == due, "the backlog is too small for a machine as fast as "+
			"this one")
		for _, all := range check {
			all(b, queue, healthy, backlog)
		}

		return figures{healthyRate: rate}
	}
}

// fails tells whether the i-th message does.
func (l load) fails(i int) bool { return l.every > 0 && i%l.every == l.every/2 }

// most is how many messages a second there can be.
func (l load) most() float64 {
	if l.work > 0 {
		return float64(time.Second / l.work)
	}

	return 40_000
}

// requireAll takes what a consumer that was closed has left, until each message of the backlog was
// handled or has been found: in its queue, waiting, or dead. What was being settled at the close
// can be both.
func requireAll(b *testing.B, queue string, handled *tally, backlog int) {
	b.Helper()
	plan := planOf(b, queue, threeRetries.WithDefaults())
	channel := open(b)
	defer channel.Close()

	found := make(chan amqp091.Delivery)
	take := func(queue string) {
		deliveries, err := channel.Consume(queue, "", true, false, false, false, nil)
		require.NoError(b, err)
		go func() {
			for d := range deliveries {
				select {
				case found <- d:
				case <-b.Context().Done():
				}
			}
		}()
	}
	take(queue) // to which those that wait come back
	take(plan.DeadLetterQueue)

	all := maps.Clone(handled.seen)
	timeout := time.After(time.Minute)
	for len(all) < backlog {
		select {
		case d := <-found:
			n, err := strconv.Atoi(d.Headers[numberHeader].(string))
			require.NoError(b, err)
			all[n] = struct{}{}
		case <-timeout:
			b.Fatalf("%d of %d messages are lost", backlog-len(all), backlog)
		}
	}
}
