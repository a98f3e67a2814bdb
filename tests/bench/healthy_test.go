package bench

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// BenchmarkHealthy is what the retrier costs while nothing fails.
func BenchmarkHealthy(b *testing.B) {
	t := report.Table{
		Title: "Healthy messages",
		Notes: []string{
			"A router whose handler does nothing takes a backlog from its queue: on watermill-amqp as it is (stock), " +
				"on its subscriber with the retrier's config and middleware (config), on the retrier's consumer " +
				"(retrier). One handler at a time. From the end of the first tenth, which warms up, to the last " +
				"message. Allocations are those of the whole process for each message: AMQP client, subscriber, " +
				"router, middleware.",
			"Aims: config/stock 0.97; retrier/stock above 1 with each prefetch above 1.",
		},
		Head: []string{
			"queue", "prefetch", "config/stock", "retrier/stock", "stock msg/s",
			"stock allocs", "config allocs", "retrier allocs", "stock bytes", "config bytes", "retrier bytes",
		},
	}
	defer t.WriteOn(b, brokertest.URI(b))

	for _, queueType := range queueTypes {
		for _, at := range []struct{ prefetch, backlog int }{{1, 2_000}, {10, 8_000}, {100, 12_000}} {
			// about a second each
			b.Run(fmt.Sprintf("%s/prefetch=%d", queueType, at.prefetch), func(b *testing.B) {
				backlog := report.Scaled(b, at.backlog, 100)
				on := func(w way) func(b *testing.B) figures {
					return func(b *testing.B) figures { return drain(b, w, queueType, at.prefetch, backlog) }
				}
				all := report.Compare(b,
					contender{"stock", on(stock)},
					contender{"config", on(ownConfig(amqpretry.Options{}))},
					contender{"retrier", on(ownConsumer(amqpretry.Options{}))},
				)

				row := []any{queueType, at.prefetch, all.Ratio("config", "stock", "msg/s"),
					all.Ratio("retrier", "stock", "msg/s"), all.Median("stock", "msg/s")}
				for _, unit := range []string{"allocs/msg", "B/msg"} {
					for _, name := range []string{"stock", "config", "retrier"} {
						row = append(row, all.Median(name, unit))
					}
				}
				t.Add(row...)
			})
		}
	}
}

// drain takes a backlog from a queue. It fails when not each message of it is handled.
func drain(b *testing.B, w way, queueType string, prefetch, backlog int) figures {
	b.Helper()
	queue := newQueue(b, queueType, config.Policy{})
	fill(b, queue, backlog, numbered)

	handled := newTally(backlog)
	warm := backlog / 10
	var from, to usage
	handle := func(msg *message.Message) error {
		switch handled.add(msg) {
		case warm:
			from = used()
		case backlog:
			to = used()
		}

		return nil
	}
	runtime.GC() // what filling has left is nobody's
	w.consume(b, durable(b, queueType, prefetch), queue, handle, handled.all, time.Minute)

	return to.since(from, backlog-warm)
}

// usage is what the process has used up so far.
type usage struct {
	at            time.Time
	allocs, bytes uint64
}

func used() usage {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)

	return usage{time.Now(), m.Mallocs, m.TotalAlloc}
}

func (u usage) since(from usage, messages int) figures {
	n := float64(messages)

	return figures{
		"msg/s":      n / u.at.Sub(from.at).Seconds(),
		"allocs/msg": float64(u.allocs-from.allocs) / n,
		"B/msg":      float64(u.bytes-from.bytes) / n,
	}
}
