package metrics_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/middleware/metrics"
	"github.com/amqpretry/watermill-retry/retry"
)

// fixed depths.
type fixed []retry.QueueDepth

func (f fixed) QueueDepths(context.Context) ([]retry.QueueDepth, error) { return f, nil }

// depthsFunc is asked for depths.
type depthsFunc func(context.Context) ([]retry.QueueDepth, error)

func (f depthsFunc) QueueDepths(ctx context.Context) ([]retry.QueueDepth, error) { return f(ctx) }

const (
	up     = `amqpretry_queue_depths_up{}`
	failed = `amqpretry_queue_depths_errors_total{}`
	dlq    = `amqpretry_queue_messages_ready{main_queue="orders",queue="orders.dlq",role="dead-letter"}`
	shared = `amqpretry_queue_messages_ready{main_queue="",queue="retry.1s",role="retry"}`
)

var someDepths = []retry.QueueDepth{
	{Queue: "orders.dlq", Role: retry.QueueRoleDeadLetter, MainQueue: "orders", Messages: 3},
	{Queue: "retry.1s", Role: retry.QueueRoleRetry, Messages: 5},
}

func TestDepths(t *testing.T) {
	t.Parallel()
	m, registry := newMetrics(t, metrics.Config{})
	assert.NotContains(t, values(t, registry, true), up, "nothing is watched")

	stop := m.Watch(fixed(someDepths))
	assert.Equal(t, map[string]float64{up: 1, dlq: 3, shared: 5}, values(t, registry, false))

	// Another retrier of the process uses the same shared queue, and sees it a moment later.
	other := m.Watch(fixed{{Queue: "retry.1s", Role: retry.QueueRoleRetry, Messages: 6}})
	assert.Equal(t, map[string]float64{up: 1, dlq: 3, shared: 6}, values(t, registry, false))

	stop()
	stop()
	assert.Equal(t, map[string]float64{up: 1, shared: 6}, values(t, registry, false))
	other()
	assert.Empty(t, values(t, registry, false))
}

// The roles of exact delays are label values, and queues in which messages wait tell for how long
// at most.
func TestDepthsOfExactDelays(t *testing.T) {
	t.Parallel()
	m, registry := newMetrics(t, metrics.Config{})
	m.Watch(fixed{
		{Queue: "l.30s", Role: retry.QueueRoleDelay, Messages: 2, Wait: 39900 * time.Millisecond},
		{Queue: "l.40s", Role: retry.QueueRoleDelay, Wait: 49900 * time.Millisecond},
		{Queue: "l.unroutable", Role: retry.QueueRoleUnroutable, Messages: 1},
		{Queue: "x", Role: "another", Messages: 7},
	})
	m.Watch(fixed{{Queue: "l.30s", Role: retry.QueueRoleDelay, Messages: 3, Wait: 39900 * time.Millisecond}})

	const ready, wait = "amqpretry_queue_messages_ready", "amqpretry_queue_wait_seconds"
	assert.Equal(t, map[string]float64{
		up: 1,
		ready + `{main_queue="",queue="l.30s",role="delay"}`:             3,
		wait + `{main_queue="",queue="l.30s",role="delay"}`:              39.9,
		ready + `{main_queue="",queue="l.unroutable",role="unroutable"}`: 1,
		ready + `{main_queue="",queue="x",role="other"}`:                 7,
	}, values(t, registry, false), "and nothing waits in an empty queue")
}

func TestDepthsThatCannotBeRead(t *testing.T) {
	t.Parallel()

	for name, broken := range map[string]depthsFunc{
		"an error":     func(context.Context) ([]retry.QueueDepth, error) { return nil, errors.New("no broker") },
		"a panic":      func(context.Context) ([]retry.QueueDepth, error) { panic("no broker") },
		"a Goexit":     func(context.Context) ([]retry.QueueDepth, error) { runtime.Goexit(); return nil, nil },
		"nil":          nil,
		"never a word": func(context.Context) ([]retry.QueueDepth, error) { select {} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// a busy machine is none that does not answer
			m, registry := newMetrics(t, metrics.Config{DepthTimeout: 2 * time.Second})
			m.OnEvent(event(retry.EventConsuming))
			if broken == nil {
				m.Watch(nil)
			} else {
				m.Watch(broken)
			}
			for range 10 { // which are ready long before they are asked, if the first takes its time
				m.Watch(fixed(someDepths))
			}

			for i := range 3 {
				got := values(t, registry, true)
				equal(t, 0., got[up])
				equal(t, float64(i+1), got[failed])
				equal(t, 3., got[dlq], "those of the other retrier")
				equal(t, 1., got[`amqpretry_consuming_subscriptions{topic="orders"}`], "and what has to do with no "+
					"queue")
			}
		})
	}
}

// What a retrier has found out until the end of its time counts.
func TestDepthsThatAreIncomplete(t *testing.T) {
	t.Parallel()
	m, registry := newMetrics(t, metrics.Config{DepthTimeout: 2 * time.Second})
	m.Watch(depthsFunc(func(ctx context.Context) ([]retry.QueueDepth, error) {
		<-ctx.Done()
		return someDepths[:1], context.Cause(ctx)
	}))

	got := values(t, registry, true)
	equal(t, 3., got[dlq])
	equal(t, 0., got[up])
	equal(t, 1., got[failed])
}

// One reading that hangs costs one scrape its timeout, and one goroutine: later scrapes neither
// wait nor ask again.
func TestDepthsThatHang(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	logs := &changes{}
	m, registry := newMetrics(t, metrics.Config{DepthTimeout: timeout, Logger: logs})

	var calls atomic.Int32
	thaw := make(chan struct{})
	m.Watch(depthsFunc(func(context.Context) ([]retry.QueueDepth, error) {
		if calls.Add(1) == 1 {
			<-thaw // whatever its context says
		}

		return someDepths, nil
	}))

	began := time.Now()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			_, err := registry.Gather()
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	assert.GreaterOrEqual(t, time.Since(began), timeout)

	took := timeout
	for range 3 { // one that waits does so in each round, a busy machine stands still in some
		began = time.Now()
		for range 20 {
			equal(t, 0., values(t, registry, true)[up])
		}
		if took = time.Since(began); took < timeout {
			break
		}
	}
	assert.Less(t, took, timeout)
	assert.EqualValues(t, 1, calls.Load())
	assert.Equal(t, []string{"Cannot read the queue depths"}, logs.told())

	close(thaw)
	await.Until(t, func() bool {
		return values(t, registry, true)[up] == 1
	})
	equal(t, 3., values(t, registry, true)[dlq])
	assert.Equal(t, []string{"Cannot read the queue depths", "Reading the queue depths works again"},
		logs.told())
}

// changes keeps what is logged.
type changes struct {
	watermill.NopLogger

	mu   sync.Mutex
	logs []string
}

func (c *changes) Error(msg string, _ error, _ watermill.LogFields) { c.add(msg) }
func (c *changes) Info(msg string, _ watermill.LogFields)           { c.add(msg) }

func (c *changes) add(msg string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.logs = append(c.logs, msg)
}

func (c *changes) told() []string {
	c.mu.Lock()
	defer c.mu.Unlock()

	return append([]string(nil), c.logs...)
}
