package metrics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/amqpretry/watermill-retry/retry"
)

// QueueDepths returns the number of ready messages in each retry queue, dead-letter queue and
// shared queue. A retrier implements it. Depths that it returns together with an error count too.
type QueueDepths interface {
	QueueDepths(ctx context.Context) ([]retry.QueueDepth, error)
}

// Watch reads the depths of a retrier's queues at each scrape, until stop is called. Several
// retriers may have the same queue: it counts once.
func (m *Metrics) Watch(queues QueueDepths) (stop func()) {
	return m.depths.watch(queues)
}

// errTimeout says that a reading is not there in time. It may still be on its way.
var errTimeout = errors.New("cannot read the queue depths in time")

// depths makes series of the queues' depths as they are at the time of a scrape.
type depths struct {
	ready  *prometheus.Desc
	wait   *prometheus.Desc
	up     *prometheus.Desc
	failed prometheus.Counter

	timeout time.Duration
	logger  watermill.LoggerAdapter
	names   *capped[string, string]

	mu      sync.Mutex
	watches []*watch
}

func newDepths(c Config) *depths {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(c.Namespace, "", name), help, labels, c.ConstLabels)
	}

	return &depths{
		ready: desc("queue_messages_ready", "Ready messages in a retry, dead-letter or shared queue.",
			labelQueue, labelRole, labelMainQueue),
		wait: desc("queue_wait_seconds", "Longest wait of the messages that lie in a queue, where it has any.",
			labelQueue, labelRole, labelMainQueue),
		up: desc("queue_depths_up", "1 if the last reading of the queues' depths was complete, else 0."),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: c.Namespace, Name: "queue_depths_errors_total", ConstLabels: c.ConstLabels,
			Help: "Readings of queues' depths that failed or took too long.",
		}),
		timeout: c.DepthTimeout,
		logger:  c.Logger,
		names:   newCapped(c.MaxQueues, other, text),
	}
}

func (d *depths) watch(queues QueueDepths) (stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()

	w := &watch{queues: queues}
	d.watches = append(d.watches, w)

	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()

		d.watches = slices.DeleteFunc(slices.Clone(d.watches), func(other *watch) bool { return other == w })
	}
}

func (d *depths) describe(ch chan<- *prometheus.Desc) {
	ch <- d.ready
	ch <- d.wait
	ch <- d.up
	d.failed.Describe(ch)
}

// collect reads all watches at the same time, so that one timeout is enough for all.
func (d *depths) collect(ch chan<- prometheus.Metric) {
	d.mu.Lock()
	watches := d.watches // never changed in place
	d.mu.Unlock()

	readings := make([]*reading, len(watches))
	for i, w := range watches {
		readings[i] = w.read(d.timeout)
	}

	depths, up := map[depthLabels]depth{}, 1.
	for i, r := range readings {
		found, err := r.wait()
		d.tell(watches[i], err)
		if err != nil {
			up = 0
			d.failed.Inc()
		}
		merge(depths, found, d.labels)
	}

	for l, of := range depths {
		ch <- prometheus.MustNewConstMetric(d.ready, prometheus.GaugeValue, float64(of.messages), l.queue, l.role,
			l.mainQueue)
		if of.wait > 0 {
			ch <- prometheus.MustNewConstMetric(d.wait, prometheus.GaugeValue, of.wait.Seconds(), l.queue, l.role,
				l.mainQueue)
		}
	}
	if len(watches) > 0 {
		ch <- prometheus.MustNewConstMetric(d.up, prometheus.GaugeValue, up)
	}
	d.failed.Collect(ch)
}

// tell logs when readings begin to fail, and when they work again.
func (d *depths) tell(w *watch, err error) {
	switch changed := w.fails(err != nil); {
	case !changed:
	case err != nil:
		d.logger.Error("Cannot read the queue depths", err, nil)
	default:
		d.logger.Info("Reading the queue depths works again", nil)
	}
}

type depthLabels struct{ queue, role, mainQueue string }

func (d *depths) labels(q retry.QueueDepth) depthLabels {
	l := depthLabels{queue: d.names.of(q.Queue), role: other, mainQueue: text(q.MainQueue)}
	switch q.Role {
	case retry.QueueRoleRetry, retry.QueueRoleDeadLetter, retry.QueueRoleDelay, retry.QueueRoleUnroutable,
		retry.QueueRoleFailed:
		l.role = string(q.Role)
	}
	if l.queue == other {
		l.mainQueue = other
	}

	return l
}

// depth is how many messages are in a queue, and how long they wait at most; 0 where there are
// none.
type depth struct {
	messages int
	wait     time.Duration
}

// merge adds what one retrier has found to what the others have. Two that look at the same queue
// see it at different moments: the larger number counts.
func merge(all map[depthLabels]depth, found []retry.QueueDepth, labels func(retry.QueueDepth) depthLabels) {
	sums := map[depthLabels]depth{} // of a retrier: queues beyond the limit share their labels
	for _, q := range found {
		l := labels(q)
		sum := sums[l]
		sum.messages += q.Messages
		if q.Messages > 0 {
			sum.wait = max(sum.wait, q.Wait)
		}
		sums[l] = sum
	}
	for l, sum := range sums {
		known := all[l]
		all[l] = depth{max(known.messages, sum.messages), max(known.wait, sum.wait)}
	}
}

// watch reads the depths of one retrier's queues, one reading at a time: one that hangs is not
// joined by more with each scrape.
type watch struct {
	queues QueueDepths

	mu      sync.Mutex
	last    *reading
	failing bool
}

// reading is on its way until done is closed.
type reading struct {
	late time.Time // when it takes too long
	done chan struct{}

	depths []retry.QueueDepth
	err    error
}

// read begins a reading, unless one is on its way: scrapes at the same time share it.
func (w *watch) read(timeout time.Duration) *reading {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.last != nil {
		select {
		case <-w.last.done:
		default:
			return w.last
		}
	}

	r := &reading{late: time.Now().Add(timeout), done: make(chan struct{})}
	w.last = r
	go r.run(w.queues, timeout*4/5) // the rest is for handing over what was found until then

	return r
}

func (w *watch) fails(now bool) (changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()

	changed = w.failing != now
	w.failing = now

	return changed
}

// run calls foreign code, which may panic.
func (r *reading) run(queues QueueDepths, timeout time.Duration) {
	defer close(r.done)

	ctx, cancel := context.WithTimeoutCause(context.Background(), timeout, errTimeout)
	defer cancel()

	r.err = errors.New("QueueDepths called runtime.Goexit")
	defer func() {
		if p := recover(); p != nil {
			r.err = fmt.Errorf("QueueDepths panicked: %v", p)
		}
	}()

	r.depths, r.err = queues.QueueDepths(ctx)
}

// wait is until the reading is done, or takes too long as seen from when it began: one that hangs
// costs later scrapes nothing.
func (r *reading) wait() ([]retry.QueueDepth, error) {
	timer := time.NewTimer(time.Until(r.late))
	defer timer.Stop()

	select {
	case <-r.done:
		return r.depths, r.err
	case <-timer.C:
	}

	select { // both may be, when another one has been waited for
	case <-r.done:
		return r.depths, r.err
	default:
		return nil, errTimeout
	}
}
