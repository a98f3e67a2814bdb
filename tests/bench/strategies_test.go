package bench

import (
	"errors"
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
	"github.com/amqpretry/watermill-retry/retry"
)

// BenchmarkStrategies is what it costs to have the broker bring failed messages back, beside
// copies.
func BenchmarkStrategies(b *testing.B) {
	t := report.Table{
		Title: "Strategies",
		Notes: []string{
			"Messages per second, as a share of what the same consumer does with the strategy queues. Higher is " +
				"better. " +
				"Quorum queues, one handler at a time that takes no time, prefetch " + strconv.Itoa(failurePrefetch) +
				", three retries, 100 ms apart; a redelivery has no delay.",
			"*Healthy*: none fails. *Fail once*: each message fails once and is handled then. *Fail for good*: each " +
				"message fails four times and ends in the dead-letter queue. *Between*: healthy messages per second " +
				"while one in 10 fails for good. Measured from the first call until all of them are done.",
		},
		Head: []string{"load", string(config.StrategyCycle), string(config.StrategyRedelivery),
			string(config.StrategyNative), "queues msg/s"},
	}
	defer t.WriteOn(b, brokertest.URI(b))

	others := []config.Strategy{config.StrategyCycle, config.StrategyRedelivery}
	if newClient(b).AtLeast(4, 3) {
		others = append(others, config.StrategyNative)
	}
	for _, load := range strategyLoads {
		b.Run(load.name, func(b *testing.B) {
			contenders := []contender{{string(config.StrategyQueues), load.with(config.StrategyQueues)}}
			for _, strategy := range others {
				contenders = append(contenders, contender{string(strategy), load.with(strategy)})
			}
			all := report.Compare(b, contenders...)

			row := []any{load.name}
			for _, strategy := range []config.Strategy{config.StrategyCycle, config.StrategyRedelivery,
				config.StrategyNative} {
				if len(all[string(strategy)]) == 0 {
					row = append(row, "") // the broker does not have it
					continue
				}
				row = append(row, all.Ratio(string(strategy), string(config.StrategyQueues), strategyRate))
			}
			t.Add(append(row, all.Median(string(config.StrategyQueues), strategyRate))...)
		})
	}
}

const strategyRate = "msg/s"

// strategyLoad is a number of messages, of which some fail.
type strategyLoad struct {
	name     string
	messages int
	// failures is how often the i-th message fails; more often than the policy allows for one that
	// ends as a dead letter.
	failures func(i int) int
	// counts tells whether the i-th message is one of those whose rate is measured. The others have
	// to end as well.
	counts func(i int) bool
}

const forGood = 1 << 30

func all(int) bool { return true }

func oneIn10(i int) bool { return i%10 == 5 }

var strategyLoads = []strategyLoad{
	{"healthy", 20_000, func(int) int { return 0 }, all},
	{"fail once", 10_000, func(int) int { return 1 }, all},
	{"fail for good", 5_000, func(int) int { return forGood }, all},
	{"between", 20_000, func(i int) int {
		if oneIn10(i) {
			return forGood
		}
		return 0
	}, func(i int) bool { return !oneIn10(i) }},
}

var errStrategy = errors.New("it fails")

// with measures a strategy. Each message must end as its failures say.
func (l strategyLoad) with(strategy config.Strategy) func(b *testing.B) figures {
	return func(b *testing.B) figures {
		b.Helper()
		policy := config.Policy{Strategy: strategy, Delays: []time.Duration{100 * time.Millisecond}, Retries: 3}
		messages := report.Scaled(b, l.messages, 200)
		queue := newQueue(b, "quorum", policy)
		fill(b, queue, messages, numbered)

		counted := 0
		for i := range messages {
			if l.counts(i) {
				counted++
			}
		}
		measured, ended := newTally(counted), newTally(messages)
		end := func(msg *message.Message) {
			if l.counts(numberOf(msg)) {
				measured.add(msg)
			}
			ended.add(msg)
		}
		var began, done time.Time
		var first sync.Once
		handle := func(msg *message.Message) error {
			first.Do(func() { began = time.Now() })
			attempt, _ := retry.AttemptFromContext(msg.Context())
			if attempt.Number <= l.failures(numberOf(msg)) {
				return errStrategy
			}
			end(msg)

			return nil
		}
		options := amqpretry.Options{Policies: config.Policies{Default: policy}, OnEvent: func(e retry.Event) {
			if e.Kind == retry.EventDeadLettered {
				end(e.Message)
			}
		}}
		timed := make(chan struct{})
		go func() {
			defer close(timed)
			<-measured.all
			done = time.Now()
		}()
		ownConsumer(options).consume(b, durable(b, "quorum", failurePrefetch), queue, handle, ended.all, 2*time.Minute)
		require.Equal(b, messages, ended.handled(), "messages that have ended")
		<-timed

		return figures{strategyRate: float64(counted) / done.Sub(began).Seconds()}
	}
}
