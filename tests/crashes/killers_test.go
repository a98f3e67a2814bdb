package crashes

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// killing is a combination of services and messages, some of which kill.
type killing struct {
	workers, topics       int
	concurrency, prefetch int // a prefetch of 0 follows the handlers
	innocents, killers    int // in each topic; killers in the first one only
	perSecond             int // innocents more, while the killers live
	work, fuse            time.Duration
}

func (k killing) String() string {
	return fmt.Sprintf("%d workers, %d topics, concurrency %d, prefetch %s, %d innocents of %s and %d/s, %d killers "+
		"after %s",
		k.workers, k.topics, k.concurrency, prefetched(k.prefetch), k.innocents, k.work, k.perSecond, k.killers, k.fuse)
}

// few are the ones of make test, all those of make crashes.
func killings() []killing {
	ms := time.Millisecond
	if os.Getenv("CRASHES") == "" {
		return []killing{
			{workers: 2, topics: 1, concurrency: 10, prefetch: 100, innocents: 50, killers: 1, work: 20 * ms},
			{workers: 1, topics: 3, concurrency: 1, innocents: 12, killers: 1, work: 50 * ms},
		}
	}
	var all []killing
	for _, workers := range []int{1, 2, 4} {
		for _, innocents := range []int{50, 200} {
			for _, killers := range []int{1, 2} {
				all = append(all, killing{workers: workers, topics: 1, concurrency: 10, prefetch: 100,
					innocents: innocents, killers: killers, work: 50 * ms})
			}
		}
	}
	for _, prefetch := range []int{0, 1, 10, 50, 200, 1000} {
		for _, workers := range []int{1, 4} {
			all = append(all, killing{workers: workers, topics: 1, concurrency: cmp.Or(min(10, prefetch), 10),
				prefetch: prefetch, innocents: 200, killers: 1, work: 50 * ms, fuse: 300 * ms})
		}
	}

	return append(all,
		// the hardest
		killing{workers: 4, topics: 1, concurrency: 10, prefetch: 100, innocents: 200, killers: 2, work: 50 * ms,
			perSecond: 200},
		killing{workers: 4, topics: 1, concurrency: 10, innocents: 200, killers: 2, work: 50 * ms, perSecond: 200},
		killing{workers: 1, topics: 4, concurrency: 1, innocents: 20, killers: 1, work: 500 * ms},
		killing{workers: 2, topics: 4, concurrency: 1, prefetch: 50, innocents: 50, killers: 1, work: 50 * ms,
			fuse: 300 * ms},
		killing{workers: 2, topics: 4, concurrency: 10, prefetch: 100, innocents: 50, killers: 2, work: 50 * ms,
			perSecond: 50},
	)
}

// A message that kills its process reaches the dead-letter queue, and no message that it takes
// along is charged for that.
func TestKillersNeighboursAreNotCharged(t *testing.T) {
	sideBySide(t)
	version := dial(t).Version()
	table := report.Table{Head: []string{"RabbitMQ " + version + ": services and messages", "deaths",
		"innocents charged", "dead", "largest x-delivery-count", "s"}}
	for _, k := range killings() {
		t.Run(k.String(), func(t *testing.T) {
			began := time.Now()
			r := k.play(t)
			charged := 0
			for id := range r.charged {
				if !strings.HasPrefix(id, "killer") {
					charged++
				}
			}
			dead := 0
			for id, reason := range r.dead {
				if !strings.HasPrefix(id, "killer") {
					dead++
				} else {
					assert.Equal(t, "crashed", reason)
				}
			}
			assert.Zero(t, charged, "innocents that are taken for crashed")
			assert.Zero(t, dead, "innocents in the dead-letter queue")
			table.Add(k, r.deaths, charged, dead, r.most, int(time.Since(began).Seconds()))
		})
	}
	report.Write(t, table.String())
}

func (k killing) play(t *testing.T) *record {
	t.Helper()
	b, r := dial(t), newRecord()
	s := service{
		URI: brokertest.URI(t), Queues: queuesFor(k.topics), QueueType: "quorum",
		Concurrency: k.concurrency, Prefetch: k.prefetch, Work: k.work, Fuse: k.fuse,
	}
	b.declare(s)
	published := 0
	for i, queue := range s.Queues {
		half := rabbit.Numbered(fmt.Sprintf("innocent-%d", i), k.innocents)
		b.publish(queue, half[:k.innocents/2]...)
		if i == 0 {
			b.publish(queue, rabbit.Numbered("killer", k.killers)...)
		}
		b.publish(queue, half[k.innocents/2:]...)
		published += k.innocents
	}

	fleet := launch(t, s, k.workers, r)
	executed := func(r *record) bool {
		n := 0
		for id := range r.dead {
			if strings.HasPrefix(id, "killer") {
				n++
			}
		}

		return n == k.killers
	}
	defer func() {
		if t.Failed() {
			r.is(func(r *record) bool {
				t.Logf("done %d, dead %d of %d", len(r.done), len(r.dead), published)
				return true
			})
		}
	}()
	batch := 0
	await.Within(t, 4*time.Minute, func() bool {
		if n := k.perSecond / 20; n > 0 {
			for i, queue := range s.Queues {
				b.publish(queue, rabbit.Numbered(fmt.Sprintf("later-%d-%d", i, batch), n)...)
				published += n
			}
			batch++
			<-time.After(50*time.Millisecond - await.Tick)
		}
		return r.is(executed)
	}, "the killers are in the dead-letter queue")
	await.Within(t, 4*time.Minute, func() bool {
		return r.is(func(r *record) bool { return len(r.done)+len(r.dead)-k.killers >= published })
	}, "all innocents are handled")
	fleet.end()
	for _, queue := range s.Queues {
		assert.Empty(t, b.left(queue))
	}

	return r
}
