// Package waiting proves what is promised of messages that wait while somebody lists, cancels,
// sends or postpones them.
package waiting

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// waitingMessages is how many wait: WAITING=1000000 measures.
func waitingMessages(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("WAITING"))
	if err != nil {
		return 20_000
	}

	return n
}

// fixture is a main queue with its retry queues.
type fixture struct {
	*rabbit.Client
	t      *testing.T
	main   string
	plan   topology.Plan
	client *dlq.Client
	waits  *dlq.Waits
	policy config.Policy
}

func newFixture(t *testing.T, policy config.Policy) *fixture {
	t.Helper()

	return newFixtureOn(t, brokertest.URI(t), policy)
}

func newFixtureOn(t *testing.T, uri string, policy config.Policy) *fixture {
	t.Helper()
	f := &fixture{Client: rabbit.New(t, uri), t: t, main: "waiting-" + watermill.NewShortUUID(), policy: policy}
	f.policy.Ladder.Prefix = f.main
	f.Declare(f.main, amqp091.Table{amqp091.QueueTypeArg: "quorum"})
	var err error
	f.plan, err = topology.New(f.main, f.policy, topology.Names{})
	require.NoError(t, err)
	t.Cleanup(func() { f.RemovePlan(f.plan) })
	f.Do(func(channel *amqp091.Channel) error {
		if f.plan.Ladder != nil {
			t.Cleanup(func() { f.RemovePlan(f.plan.Ladder.Shared()) })
			if err := f.plan.Ladder.Shared().Declare(channel); err != nil {
				return err
			}
		}
		return f.plan.Declare(channel)
	})
	f.client, f.waits = f.open()

	return f
}

func (f *fixture) open() (*dlq.Client, *dlq.Waits) {
	f.t.Helper()
	client, err := dlq.Open(f.t.Context(), dlq.Config{URI: f.URI, NoDeliveryLimitPolicy: true})
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = client.Close() })
	waits, err := client.Waits(topology.Target{Key: f.main}, f.policy)
	require.NoError(f.t, err)

	return client, waits
}

// retries sends copies to wait, as a service does.
func (f *fixture) retries(prefix string, n int, delay time.Duration) {
	f.t.Helper()
	for from := 0; from < n; from += 1000 {
		var messages []amqp091.Publishing
		now := time.Now()
		s := wire.State{Count: 1, Attempts: 1, Queue: f.main, Topic: f.main, Delay: config.FormatDelay(delay),
			Due: now.Add(delay), LastFailure: now, FirstFailure: now, Since: now, Error: "boom"}
		var exchange, key string
		for i := from; i < min(n, from+1000); i++ {
			uuid := prefix + strconv.Itoa(i)
			m := rabbit.Message(uuid, uuid)
			m.DeliveryMode, m.Priority = amqp091.Persistent, uint8(i%5) //nolint:gosec // small
			for key, value := range s.Headers("id-" + uuid) {
				m.Headers[key] = value
			}
			exchange, key = f.plan.Route(1, delay, &m)
			messages = append(messages, m)
		}
		require.NoError(f.t, f.TryPublish(exchange, key, messages...))
	}
}

// arrivals are when messages came, and when they were due.
type arrivals struct {
	mu   sync.Mutex
	came []arrival
}

type arrival struct {
	uuid, count string
	at, due     time.Time
}

func (a *arrivals) listen(deliveries <-chan amqp091.Delivery) {
	go func() {
		for d := range deliveries {
			at := time.Now()
			a.mu.Lock()
			a.came = append(a.came, arrival{rabbit.UUID(d), rabbit.Text(d, header.Count), at,
				wire.ParseTime(rabbit.Text(d, header.Due))})
			a.mu.Unlock()
		}
	}()
}

func (a *arrivals) all() []arrival {
	a.mu.Lock()
	defer a.mu.Unlock()

	return slices.Clone(a.came)
}

// While somebody lists a queue with many messages, those that become due come in time.
func TestListingMany(t *testing.T) {
	n := waitingMessages(t)
	for name, classic := range map[string]bool{"quorum": false, "classic": true} {
		t.Run(name, func(t *testing.T) {
			const perTick = 5 // every 50 ms
			ahead, delay, most := 5*time.Second, 30*time.Second, 3*time.Second
			if n > 20_000 { // of a classic queue, which takes longer to read, thousands become due each second
				most = 10 * time.Second
				ahead, delay = time.Minute, time.Duration(n/5000)*time.Second+time.Minute
			}
			f := newFixture(t, config.Policy{Delays: []time.Duration{delay}, ClassicQueues: classic})
			var came arrivals
			came.listen(rabbit.Consume(t, f.Channel(), f.main))
			began := time.Now()
			for i := 0; time.Since(began) < ahead; i++ {
				f.retries("tick-"+strconv.Itoa(i)+"-", perTick, delay)
				<-time.After(time.Until(began.Add(time.Duration(i+1) * 50 * time.Millisecond)))
			}
			f.retries("bulk-", n, delay)
			took := time.Since(began)
			t.Logf("%d published within %s", n, took)
			require.Less(t, took, delay, "all of them wait now")
			<-time.After(time.Until(began.Add(delay + time.Second)))

			var before runtime.MemStats
			runtime.ReadMemStats(&before)
			listed := time.Now()
			found, matched, err := f.waits.Soonest(t.Context(), dlq.Filter{}, 20)
			reading := time.Since(listed)
			require.NoError(t, err)
			assert.Len(t, found, 20)
			assert.GreaterOrEqual(t, matched, n)
			var after runtime.MemStats
			runtime.ReadMemStats(&after)

			<-time.After(time.Until(listed.Add(ahead - time.Second)))
			var late, quiet []time.Duration
			for _, a := range came.all() {
				if a.due.After(listed) && a.due.Before(listed.Add(reading)) {
					late = append(late, a.at.Sub(a.due))
				} else {
					quiet = append(quiet, a.at.Sub(a.due))
				}
			}
			slices.Sort(late)
			slices.Sort(quiet)
			t.Logf("RabbitMQ %s, %s: %d of %d listed in %s; heap %d MiB more, %d MiB from the system", f.Version(),
				name, len(found), matched, reading.Round(time.Millisecond),
				(int64(after.HeapAlloc)-int64(before.HeapAlloc))>>20, after.Sys>>20)
			for of, all := range map[string][]time.Duration{"while it was read": late, "else": quiet} {
				if len(all) > 0 {
					t.Logf("late %s: %d messages, median %s, 99%% %s, most %s", of, len(all), all[len(all)/2],
						all[len(all)*99/100], all[len(all)-1])
				}
			}
			require.NotEmpty(t, late)
			assert.Less(t, late[len(late)-1], most)
			assert.Greater(t, late[0], -20*time.Millisecond, "none is early")
		})
	}
}
