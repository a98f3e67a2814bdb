package bench

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/retry"
)

// waits are those of numbered messages that fail once each. It takes all of its memory at the
// beginning.
type waits struct {
	delays []time.Duration // of the first message, of the second …, and so on from the beginning
	began  time.Time

	mu           sync.Mutex
	failed, back []time.Duration // since it began; 0 for not yet
	waiting      int
	returned     int
	done         chan struct{}
}

func newWaits(messages int, delays ...time.Duration) *waits {
	return &waits{
		delays: delays, began: time.Now(), failed: make([]time.Duration, messages),
		back: make([]time.Duration, messages), done: make(chan struct{}),
	}
}

func (w *waits) delayOf(i int) time.Duration { return w.delays[i%len(w.delays)] }

// failure is the error of a message's first call. Where messages have different delays, it asks for
// this one's.
func (w *waits) failure(i int) error {
	if len(w.delays) == 1 {
		return errRefused
	}

	return retry.RetryAfter(w.delayOf(i), errRefused)
}

// called notes a call for a message. It tells whether it is the second; a third is a failure of the
// benchmark.
func (w *waits) called(b *testing.B, i int) (again bool) {
	now := time.Since(w.began)
	w.mu.Lock()
	defer w.mu.Unlock()

	switch {
	case w.failed[i] == 0:
		w.failed[i] = now
		w.waiting++

		return false
	case w.back[i] != 0:
		b.Errorf("message %d came back twice", i)
		return true
	}
	w.back[i] = now
	w.waiting--
	if w.returned++; w.returned == len(w.back) {
		close(w.done)
	}

	return true
}

// allFailed tells whether each message has.
func (w *waits) allFailed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.waiting+w.returned == len(w.failed)
}

// await waits until all have come back.
func (w *waits) await(b *testing.B, within time.Duration) {
	b.Helper()
	select {
	case <-w.done:
	case <-time.After(within):
		w.mu.Lock()
		defer w.mu.Unlock()
		require.FailNow(b, "messages are missing", "%d of %d have failed, and %d have come back", w.waiting+w.returned,
			len(w.failed), w.returned)
	}
}

// milliseconds are by how much each came back late; the first few are left out.
func (w *waits) milliseconds(without int) []float64 {
	late := make([]float64, 0, len(w.back))
	for i := range w.back {
		late = append(late, float64(w.back[i]-w.failed[i]-w.delayOf(i))/float64(time.Millisecond))
	}

	return late[without:]
}

// millisecondsOf are those of the messages with one of several delays.
func (w *waits) millisecondsOf(delay time.Duration, without int) []float64 {
	var late []float64
	for i, by := range w.milliseconds(without) {
		if w.delayOf(i+without) == delay {
			late = append(late, by)
		}
	}

	return late
}

// perSecond is how many there are in a second between the first and the last.
func perSecond(times []time.Duration) float64 {
	return float64(len(times)) / (slices.Max(times) - slices.Min(times)).Seconds()
}

// atOnce is how many were waiting when the first came back.
func (w *waits) atOnce() int {
	first, n := slices.Min(w.back), 0
	for _, at := range w.failed {
		if at <= first {
			n++
		}
	}

	return n
}

// start runs a router until stop is called.
func start(b *testing.B, router *message.Router) (stop func()) {
	b.Helper()
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-ended:
		require.FailNow(b, "the router has ended", "%v", err)
	}

	return func() {
		require.NoError(b, router.Close())
		require.NoError(b, <-ended)
	}
}

// once runs what takes too long to be repeated, whatever -benchtime says.
func once(b *testing.B, run func()) {
	b.Helper()
	for first := true; b.Loop(); first = false {
		if first {
			run()
		}
	}
	b.ReportMetric(0, "ns/op") // it says nothing
}
