package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// BenchmarkWaiting has a service fail very many messages, and looks at its memory while they wait
// and at how they return.
func BenchmarkWaiting(b *testing.B) {
	t := report.Table{
		Title: "Very many messages waiting",
		Notes: []string{
			fmt.Sprintf("Each message is forwarded by the retrier (%d handlers at a time) while it is being "+
				"published, waits, and comes back once; none is lost. *At once* is how many were waiting when the "+
				"first came back. They come back as they went, so no faster than they were forwarded; *late* "+
				"(seconds after the delay) says whether the return kept up.",
				waitingConcurrency),
			"Memory in MiB, after a collection of garbage, before, while all wait, and when all are back: the heap " +
				"in use of the client, and what the Erlang machine of the broker has in use. A single run each, on a " +
				"broker of its own. The delay is as long as it needs to be for all to wait at once, by the pace of a " +
				"fiftieth of the messages before.",
		},
		Head: []string{
			"queues", "messages", "at once", "forwarded/s", "returned/s", "late p50", "late max",
			"client before", "client waiting", "client after", "broker before", "broker waiting", "broker after",
		},
	}
	for _, c := range []struct {
		queueType string
		most      int
	}{{"quorum", 1_000_000}, {"classic", 100_000}} {
		b.Run(c.queueType, func(b *testing.B) {
			once(b, func() {
				broker, messages := newBroker(b), report.Scaled(b, c.most, fewestWaiting)
				f := wait(b, c.queueType, max(messages/50, fewestWaiting), time.Second, nil)
				forwarding := time.Duration(float64(messages) / f["forwarded/s"] * float64(time.Second))
				f = wait(b, c.queueType, messages, (forwarding*13/10 + 4*time.Second).Round(time.Second), broker)

				t.Add(c.queueType, messages, int(f["at-once"]), f["forwarded/s"], f["returned/s"], f["late-p50-s"],
					f["late-max-s"],
					f["client-before-MiB"], f["client-waiting-MiB"], f["client-after-MiB"], f["broker-before-MiB"],
					f["broker-waiting-MiB"], f["broker-after-MiB"])
				for unit, value := range f {
					b.ReportMetric(value, unit)
				}
			})
		})
	}
	t.WriteOn(b, brokertest.URI(b))
}

const (
	fewestWaiting      = 2000
	waitingConcurrency = 8
	portion            = 10_000 // of messages that are published before their confirms are waited for
)

// wait has so many messages fail once and come back after a delay. It looks at the memory if it is
// given the broker.
func wait(b *testing.B, queueType string, messages int, delay time.Duration, broker *brokertest.Broker) figures {
	b.Helper()
	policy := config.Policy{Delays: []time.Duration{delay}, ClassicQueues: queueType == "classic"}
	waits := newWaits(messages, delay)
	queue, stop := startWaiting(b, queueType, policy, amqpretry.Options{Concurrency: waitingConcurrency}, waits)
	defer stop()

	f := figures{}
	look := func(when string) {
		if broker == nil {
			return
		}
		f["client-"+when+"-MiB"], f["broker-"+when+"-MiB"] = clientMiB(), brokerMiB(b, broker)
	}
	look("before")
	for from := 0; from < messages; from += portion {
		fill(b, queue, min(portion, messages-from), func(i int) amqp091.Table { return numbered(from + i) })
	}
	await.Within(b, delay+10*time.Minute, waits.allFailed)
	look("waiting")
	waits.await(b, delay+20*time.Minute)
	look("after")

	late := percentiles(waits.milliseconds(0))
	f["at-once"] = float64(waits.atOnce())
	f["forwarded/s"], f["returned/s"] = perSecond(waits.failed), perSecond(waits.back)
	f["late-p50-s"], f["late-max-s"] = late[0]/1000, late[2]/1000

	return f
}
