package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// cost is a delay of a ladder of milliseconds, by how many queues of it a message waits in.
type cost struct {
	name  string
	delay time.Duration
}

// costs are longer than it takes to publish all messages. A delay of five digits would take too
// long with the default's unit.
func costs(b *testing.B) []cost {
	b.Helper()
	if report.Scale(b) < 0.1 {
		return []cost{{"exact, 1 wait", 300 * time.Millisecond}, {"exact, 2 waits", 370 * time.Millisecond}}
	}

	return []cost{
		{"exact, 1 wait", 3 * time.Second},
		{"exact, 2 waits", 3700 * time.Millisecond},
		{"exact, 3 waits", 3710 * time.Millisecond},
		{"exact, 5 waits", 11111 * time.Millisecond},
	}
}

const costPerMessage = "us"

// BenchmarkCost measures the broker's processor time for a message that waits.
func BenchmarkCost(b *testing.B) {
	messages, broker, costs := report.Scaled(b, 5000, 200), newBroker(b), costs(b)
	t := report.Table{
		Title: "What exact delays cost the broker",
		Notes: []string{
			fmt.Sprintf("Processor time of the broker for a message, in microseconds, and in ratio to one retry queue "+
				"in the same round. %d messages at a time. What the idle broker takes is subtracted.", messages),
			"*Wait*: amqp091-go publishes a message with confirms, and the broker moves it to the main queue when it " +
				"is due. *Retry*: the retrier's way of a message that fails once, from its publish to its success. " +
				"Main queues are quorum queues. The ladder has 6 levels of radix 10, as the default, but units of " +
				"1 ms; behind it every message passes its landing queue.",
		},
		Head: []string{"delay", "wait", "to one retry queue", "retry", "to one retry queue"},
	}
	const tier = "one retry queue"
	all := map[string]results{}
	for _, c := range []struct {
		name string
		run  func(*testing.B, costRun) float64
	}{{"wait", costOfWait}, {"retry", costOfRetry}} {
		b.Run(c.name, func(b *testing.B) {
			r := costRun{broker: broker, messages: messages, policy: tierPolicy([]time.Duration{costs[0].delay}),
				delay: costs[0].delay}
			contenders := []contender{{tier, func(b *testing.B) figures {
				return figures{costPerMessage: c.run(b, r)}
			}}}
			for _, cost := range costs {
				r := r
				r.delay, r.policy = cost.delay, config.Policy{
					Delays: []time.Duration{cost.delay}, Strategy: config.StrategyLadder,
					Ladder: config.Ladder{Prefix: "bench-cost", Unit: time.Millisecond},
				}
				contenders = append(contenders, contender{cost.name, func(b *testing.B) figures {
					return figures{costPerMessage: c.run(b, r)}
				}})
			}
			all[c.name] = report.Compare(b, contenders...)
		})
	}
	if len(all) < 2 {
		return // filtered out
	}
	names := []string{tier}
	for _, cost := range costs {
		names = append(names, cost.name)
	}
	for _, name := range names {
		t.Add(name, all["wait"].Median(name, costPerMessage), all["wait"].Ratio(name, tier, costPerMessage),
			all["retry"].Median(name, costPerMessage), all["retry"].Ratio(name, tier, costPerMessage))
	}
	t.WriteOn(b, brokertest.URI(b))
}

// costRun is what a contender needs.
type costRun struct {
	broker   *brokertest.Broker
	messages int
	policy   config.Policy
	delay    time.Duration
}

// perMessage is the broker's processor time for a message, in microseconds, while something is
// done. What an idle broker takes meanwhile is subtracted.
func (r costRun) perMessage(b *testing.B, do func()) float64 {
	b.Helper()
	idleFor := time.Duration(report.Scaled(b, int(3*time.Second), int(500*time.Millisecond)))
	before := brokerCPU(b, r.broker)
	<-time.After(idleFor)
	idle := float64(brokerCPU(b, r.broker)-before) / float64(idleFor)

	before, began := brokerCPU(b, r.broker), time.Now()
	do()
	used := float64(brokerCPU(b, r.broker)-before) - idle*float64(time.Since(began))

	return used / float64(r.messages) / float64(time.Microsecond)
}

// costOfWait publishes messages to where they wait, and waits until all are in the main queue.
func costOfWait(b *testing.B, r costRun) float64 {
	b.Helper()
	queue := newQueue(b, "quorum", r.policy)
	plan := planOf(b, queue, r.policy)
	channel := open(b)
	defer channel.Close()
	require.NoError(b, plan.Declare(channel))
	require.NoError(b, channel.Confirm(false))
	confirms := channel.NotifyPublish(make(chan amqp091.Confirmation, r.messages))

	return r.perMessage(b, func() {
		for range r.messages {
			p := amqp091.Publishing{
				Headers: amqp091.Table{header.Delay: config.FormatDelay(r.delay), "id": watermill.NewShortUUID()},
				Body:    payload, DeliveryMode: amqp091.Persistent,
			}
			exchange, key := plan.Route(1, r.delay, &p)
			require.NoError(b, channel.PublishWithContext(b.Context(), exchange, key, false, false, p))
		}
		for range r.messages {
			require.True(b, (<-confirms).Ack)
		}
		await.Within(b, r.delay+2*time.Minute, func() bool {
			q, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
			require.NoError(b, err)

			return q.Messages == r.messages
		})
	})
}

// costOfRetry has the retrier handle messages that fail once.
func costOfRetry(b *testing.B, r costRun) float64 {
	b.Helper()
	waits := newWaits(r.messages, r.delay)
	queue, stop := startWaiting(b, "quorum", r.policy, amqpretry.Options{}, waits)
	defer stop()

	return r.perMessage(b, func() {
		fill(b, queue, r.messages, numbered)
		waits.await(b, r.delay+2*time.Minute)
	})
}

// brokerCPU is the processor time that a broker has used so far, which Linux counts in hundredths
// of a second.
func brokerCPU(b *testing.B, broker *brokertest.Broker) time.Duration {
	b.Helper()
	const hint = "this benchmark needs Linux, and a rabbitmq-server of this machine"
	recorded, err := os.ReadFile(filepath.Join(broker.Dir, "pid"))
	require.NoError(b, err, hint)
	pid, _, _ := strings.Cut(string(recorded), " ")
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	require.NoError(b, err, hint)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])) // from the third on
	var ticks int
	for _, field := range fields[11:13] { // user and system
		n, err := strconv.Atoi(field)
		require.NoError(b, err)
		ticks += n
	}

	return time.Duration(ticks) * 10 * time.Millisecond
}
