package bench

import (
	"errors"
	"io"
	"math"
	"net"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// budgets are what each way of a message may cost, of the whole process: allocations, and writes to
// the broker. What has become less is written here.
var budgets = []struct {
	name   string
	run    func(b *testing.B, messages int) spent
	allocs float64
	writes float64 // how many go together depends on the machine, but there is never one for each message
}{
	{"healthy, 1 handler", healthyCost(1), 81, 0.3},
	{"healthy, 8 handlers", healthyCost(8), 84, 0.3},
	{"forwarded, 1 handler", forwardedCost(1), 252, 0.5}, // 5 of them to write and read when it is due
	{"forwarded, 8 handlers", forwardedCost(8), 255, 0.5},
	{"published, 64 calls at a time", publishedCost, 74, 0.3},
	{"replayed, with an undo file", replayedCost, 345, 0.5},
}

// BenchmarkCosts fails when a message costs more than it did: by counts, which are the same on each
// machine, and not by time.
func BenchmarkCosts(b *testing.B) {
	const messages = 4000
	t := report.Table{
		Title: "What a message costs",
		Notes: []string{"Of the whole process, the AMQP client and the router included: allocations, and writes to " +
			"the socket, for each of " + strconv.Itoa(messages) + " messages. Prefetch 100, quorum queues."},
		Head: []string{"message", "allocations", "at most", "writes", "at most"},
	}
	for _, c := range budgets {
		b.Run(report.Unit(c.name), func(b *testing.B) {
			for b.Loop() {
				s := c.run(b, messages)
				t.Add(c.name, s.allocs, c.allocs, s.writes, c.writes)
				assert.LessOrEqual(b, s.allocs, c.allocs, "allocations: make them fewer, or give the table a reason")
				assert.GreaterOrEqual(b, s.allocs, c.allocs-12, "allocations have become fewer: write that down")
				assert.LessOrEqual(b, s.writes, c.writes, "writes")
			}
		})
	}
	t.WriteOn(b, brokertest.URI(b))
}

// spent is what the messages between two moments have cost, each.
type spent struct{ allocs, writes float64 }

// meter counts from when it begins.
type meter struct {
	written *atomic.Int64
	mallocs uint64
	writes  int64
}

func (m *meter) begin() {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	m.mallocs, m.writes = stats.Mallocs, m.written.Load()
}

func (m *meter) spent(messages int) spent {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	n := float64(messages)

	return spent{math.Round(float64(stats.Mallocs-m.mallocs) / n),
		math.Round(100*float64(m.written.Load()-m.writes)/n) / 100}
}

// metered is a config whose connections count their writes.
func metered(b *testing.B) (amqp.Config, *meter) {
	b.Helper()
	m := &meter{written: &atomic.Int64{}}
	conf := durable(b, "quorum", forwardPrefetch)
	dial := amqp091.DefaultDial(30 * time.Second)
	conf.Connection.AmqpConfig = &amqp091.Config{Locale: "en_US"}
	conf.Connection.AmqpConfig.Dial = func(network, address string) (net.Conn, error) {
		conn, err := dial(network, address)
		return meteredConn{conn, m.written}, err
	}

	return conf, m
}

type meteredConn struct {
	net.Conn
	written *atomic.Int64
}

func (c meteredConn) Write(b []byte) (int, error) {
	c.written.Add(1)
	return c.Conn.Write(b)
}

// warmUp is how many messages come before those that are counted.
const warmUp = 500

// marks calls begin when the warm-up is over, and end with the last message.
func marks(messages int, begin, end func()) (add func()) {
	var count atomic.Int64

	return func() {
		switch count.Add(1) {
		case warmUp:
			begin()
		case int64(warmUp + messages):
			end()
		}
	}
}

func healthyCost(handlers int) func(*testing.B, int) spent {
	return func(b *testing.B, messages int) (s spent) {
		queue := newQueue(b, "quorum", config.Policy{})
		fill(b, queue, warmUp+messages, nil)
		conf, m := metered(b)
		done := make(chan struct{})
		add := marks(messages, m.begin, func() { s = m.spent(messages); close(done) })
		ownConsumer(amqpretry.Options{Concurrency: handlers}).consume(b, conf, queue,
			func(*message.Message) error { add(); return nil }, done, time.Minute)

		return s
	}
}

func forwardedCost(handlers int) func(*testing.B, int) spent {
	return func(b *testing.B, messages int) (s spent) {
		policy := config.Policy{Delays: []time.Duration{time.Hour}}
		l := newBacklog(b, "quorum", policy, warmUp+messages)
		defer newClient(b).RemovePlan(l.plan)
		conf, m := metered(b)
		done, failure := make(chan struct{}), errors.New("the warehouse does not answer")
		add := marks(messages, m.begin, func() { s = m.spent(messages); close(done) })
		options := amqpretry.Options{Policies: config.Policies{Default: policy}, Concurrency: handlers,
			OnEvent: func(e retry.Event) {
				if e.Kind == retry.EventRetried { // confirmed and being acknowledged
					add()
				}
			}}
		ownConsumer(options).consume(b, conf, l.plan.Queue, func(*message.Message) error { return failure }, done,
			time.Minute)
		l.verify(b)

		return s
	}
}

func publishedCost(b *testing.B, messages int) spent {
	queue := newQueue(b, "quorum", config.Policy{})
	conf, m := metered(b)
	retrier := newRetrier(b, conf, amqpretry.Options{})
	publisher, err := retrier.NewPublisher()
	require.NoError(b, err)
	defer func() { require.NoError(b, retrier.Close()) }()

	const callers = 64
	publish := func(messages int) {
		todo := make(chan *message.Message, messages)
		for range messages {
			todo <- message.NewMessage(watermill.NewShortUUID(), payload)
		}
		close(todo)
		failed := make(chan error, callers)
		for range callers {
			go func() {
				var err error
				for msg := range todo {
					if e := publisher.Publish(queue, msg); e != nil {
						err = e
					}
				}
				failed <- err
			}()
		}
		m.begin()
		for range callers {
			require.NoError(b, <-failed)
		}
	}
	publish(warmUp)
	publish(messages)

	return m.spent(messages)
}

// replayedCost is of a whole run, from its start to its end.
func replayedCost(b *testing.B, messages int) spent {
	q := withDeadLetters(b, messages)
	defer q.remove()
	conf, m := metered(b)
	client, err := dlq.Open(b.Context(), dlq.Config{URI: brokertest.URI(b), AMQP: conf.Connection.AmqpConfig,
		NoDeliveryLimitPolicy: true})
	require.NoError(b, err)
	defer func() { _ = client.Close() }()

	m.begin()
	done, err := client.Queue(q.main).Run(b.Context(), dlq.Plan{Kind: dlq.Replay, Undo: io.Discard})
	require.NoError(b, err)
	require.Equal(b, messages, done.Done)

	return m.spent(messages)
}
