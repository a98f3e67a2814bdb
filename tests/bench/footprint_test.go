package bench

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// BenchmarkFootprint measures the terms of the formula in docs/how-to/operate.md: what a process
// keeps in memory for a topic, a held copy, a message that was sent ahead and a dead letter.
func BenchmarkFootprint(b *testing.B) {
	t := &report.Table{
		Title: "Memory of the client",
		Notes: []string{"Heap in use and stacks after a collection, above what there was before. For dead letters " +
			"it is the highest of samples every 50 ms, garbage included. Default policy, classic main queues. A " +
			"single run each."},
		Head: []string{"what", "number", "MiB", "KiB each"},
	}
	defer t.WriteOn(b, brokertest.URI(b))
	measure := func(b *testing.B, name string, number int, used func(b *testing.B) float64) {
		b.Run(report.Unit(name), func(b *testing.B) {
			once(b, func() {
				mib := used(b)
				each := mib * 1024 / float64(number)
				t.Add(name, number, mib, each)
				b.ReportMetric(each, "KiB/each")
			})
		})
	}

	for strategy, topics := range map[config.Strategy]int{
		config.StrategyShared: report.Scaled(b, 2000, 50),
		config.StrategyQueues: report.Scaled(b, 500, 50), // a broker refuses the quorum queues of more than a thousand
	} {
		measure(b, fmt.Sprintf("topic, strategy %s", strategy), topics, func(b *testing.B) float64 {
			return footprintOfTopics(b, strategy, topics)
		})
	}
	held := report.Scaled(b, 10_000, 500)
	measure(b, "held copy, body of 1 KiB", held, func(b *testing.B) float64 {
		return footprintOfHeld(b, held, 1<<10)
	})
	measure(b, "held copy, body of 64 KiB", held/10, func(b *testing.B) float64 {
		return footprintOfHeld(b, held/10, 64<<10)
	})
	for name, prefetch := range map[string]int{"50": 50, "adaptive": 0} {
		measure(b, "bodies of 1 MiB, prefetch "+name, 100, func(b *testing.B) float64 {
			return footprintAhead(b, prefetch, 100)
		})
	}
	for _, n := range []int{report.Scaled(b, 20_000, 1000), report.Scaled(b, 200_000, 4000)} {
		b.Run(fmt.Sprintf("dead-letters-%d", n), func(b *testing.B) {
			for name, look := range looks {
				measure(b, "dead letter, "+name, n, func(b *testing.B) float64 { return footprintOf(b, look, n) })
			}
			b.ReportMetric(0, "ns/op") // it says nothing
		})
	}
}

// inUse is what heap and stacks of this process take once its garbage is collected, in MiB.
func inUse() float64 {
	runtime.GC()
	runtime.GC() // what finalizers and cleanups have let go of
	var m runtime.MemStats
	runtime.ReadMemStats(&m)

	return float64(m.HeapInuse+m.StackInuse) / (1 << 20)
}

func footprintOfTopics(b *testing.B, strategy config.Strategy, n int) float64 {
	b.Helper()
	broker := newBroker(b)
	connect := func(b *testing.B) (message.Subscriber, func() error) { return openRetrier(b, strategy) }
	_, stop := serve(b, []string{"warm-up"}, connect)
	stop()
	topics := make([]string, n)
	for i := range topics {
		topics[i] = fmt.Sprintf("bench-%d", i)
	}
	before := inUse()
	_, stop = serve(b, topics, connect)
	defer broker.Stop()
	defer stop()

	return inUse() - before
}

// footprintOfHeld is of copies that the broker takes no more of, as it has no memory left.
func footprintOfHeld(b *testing.B, n, size int) float64 {
	b.Helper()
	broker := newBroker(b)
	queue := newQueue(b, "classic", holding)
	fillWithBodies(b, queue, n, size)
	before := inUse()
	var failed atomic.Int64
	done, ended := make(chan struct{}), make(chan struct{})
	options := amqpretry.Options{Policies: config.Policies{Default: holding}, CloseTimeout: time.Second}
	handle := func(*message.Message) error {
		if failed.Add(1) == 1 {
			broker.Ctl("set_vm_memory_high_watermark", "absolute", "1")
		}
		return errors.New("fails")
	}
	go func() {
		defer close(ended)
		//nolint:testifylint // a failure ends the wait below
		ownConsumer(options).consume(b, durable(b, "classic", n), queue, handle, done, 5*time.Minute)
	}()
	await.Within(b, 3*time.Minute, func() bool { return failed.Load() >= int64(n) })
	used := inUse() - before
	confirmed := newClient(b).Depth(planOf(b, queue, holding.WithDefaults()).Queues[0].Name)
	require.Less(b, confirmed, n/20, "copies that the broker has taken all the same")
	broker.Ctl("set_vm_memory_high_watermark", "0.4")
	close(done)
	<-ended

	return used
}

// footprintAhead is of messages that wait for a handler which does not return.
func footprintAhead(b *testing.B, prefetch, messages int) float64 {
	b.Helper()
	queue := newQueue(b, "classic", holding)
	fillWithBodies(b, queue, messages, 1<<20)
	before := inUse()
	called, done, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	options := amqpretry.Options{Policies: config.Policies{Default: holding}, CloseTimeout: time.Second}
	first := true
	go func() {
		defer close(ended)
		//nolint:testifylint // a failure ends the wait below
		ownConsumer(options).consume(b, durable(b, "classic", prefetch), queue, func(*message.Message) error {
			if first {
				close(called)
			}
			first = false
			<-done
			return nil
		}, done, time.Minute)
	}()
	select {
	case <-called:
	case <-ended:
		b.FailNow()
	}
	<-time.After(3 * time.Second) // what is sent ahead has come
	used := inUse() - before
	close(done)
	<-ended

	return used
}

func fillWithBodies(b *testing.B, queue string, messages, size int) {
	b.Helper()
	client, message := newClient(b), rabbit.Message("fails", string(make([]byte, size)))
	for left := messages; left > 0; left -= 500 {
		client.Publish(queue, slices.Repeat([]amqp091.Publishing{message}, min(left, 500))...)
	}
}

// looks are the ways to look at all dead letters of a queue. Each gives how many it has seen.
var looks = map[string]func(b *testing.B, queue *dlq.Queue) int{
	"stat": func(b *testing.B, queue *dlq.Queue) int {
		stat, err := queue.Stat(b.Context(), dlq.Filter{})
		require.NoError(b, err)

		return stat.Matched
	},
	"plan": func(b *testing.B, queue *dlq.Queue) int {
		plan, err := queue.Plan(b.Context(), dlq.Plan{Kind: dlq.Replay})
		require.NoError(b, err)

		return plan.Counted.Matched
	},
	"browse": func(b *testing.B, queue *dlq.Queue) (seen int) {
		for _, err := range queue.Browse(b.Context(), dlq.Filter{}) {
			require.NoError(b, err)
			seen++
		}

		return seen
	},
}

func footprintOf(b *testing.B, look func(*testing.B, *dlq.Queue) int, n int) float64 {
	b.Helper()
	q := newLetterQueues(b)
	defer q.remove()
	for left := n; left > 0; left -= 20_000 {
		publishDeadLetters(b, q.dead, q.main, min(left, 20_000))
	}
	client, err := dlq.Open(b.Context(), dlq.Config{URI: brokertest.URI(b), NoDeliveryLimitPolicy: true})
	require.NoError(b, err)
	defer func() { _ = client.Close() }()
	before := inUse()
	peak := peakOfHeap()
	require.Equal(b, n, look(b, client.Queue(q.main)))

	return peak() - before
}
