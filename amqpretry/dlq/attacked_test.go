package dlq_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// ends fails a test whose run does not end by itself.
func ends(t *testing.T, run func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() { defer close(ended); run() }()
	await.Closed(t, ended, "the run ends")
}

// A run that fails in the middle of a long queue must end: what was on its way stays, and fills the
// block.
func TestFailedReplayOfALongQueueEnds(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	const deadLetters = 2500 // more than two blocks
	f.fill(deadLetters)
	var report dlq.Report
	ends(t, func() {
		deleted := false
		var err error
		report, err = f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Progress: func(p dlq.Progress) {
			if p.Done >= 200 && !deleted {
				deleted = true
				f.Remove("", f.main)
			}
		}})
		missing := (*dlq.NoQueueError)(nil)
		assert.ErrorAs(t, err, &missing)
	})
	f.Has(f.queue.Name(), deadLetters-report.Done)
}

// The acknowledger fails while everything that the broker hands out is on its way: nobody wakes the
// scan.
func TestFailureWhileTheScanWaits(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]amqp091.Table{"quorum": nil, "classic": classic()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, arguments)
			full := f.main + "-full"
			f.Declare(full, amqp091.Table{amqp091.QueueTypeArg: "classic", "x-max-length": int64(1),
				"x-overflow": "reject-publish"})
			f.fillWith(60, func(i int) amqp091.Publishing {
				p := deadletter.New(f.main, i)
				p.Body = bytes.Repeat([]byte("x"), 1200<<10)

				return p
			})
			// The broker hands out a first block of 32 and perhaps a second one of 16. The queue
			// takes one message, so nothing else becomes free.
			queue, told := f.watched()
			var sent atomic.Int64
			ended := make(chan error, 1)
			go func() {
				_, err := queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, To: full, Progress: func(p dlq.Progress) {
					sent.Store(int64(p.Matched))
				}})
				ended <- err
			}()
			require.ErrorContains(t, f.isTold(told), full)
			last, since := int64(0), time.Now()
			await.Until(t, func() bool {
				if n := sent.Load(); n != last {
					last, since = n, time.Now()
				}
				return last >= 32 && time.Since(since) > time.Second
			}, "all that the broker hands out is on its way")
			f.Remove("", full)
			missing := (*dlq.NoQueueError)(nil)
			assert.ErrorAs(t, await.Value(t, ended, "the run ends"), &missing)
		})
	}
}

// rate.Limiter refuses at once what would take longer than the deadline, while the context has not
// ended.
func TestReplayAtARateWithADeadline(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(10)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	report, err := f.queue.Run(ctx, dlq.Plan{Kind: dlq.Replay, Rate: 0.1})
	require.Error(t, err, "%+v", report)
}

func TestImportAtARateWithADeadline(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(10)
	var file bytes.Buffer
	_, err := f.queue.Export(t.Context(), &file, dlq.ExportOptions{})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	report, err := f.queue.Import(ctx, &file, dlq.ImportOptions{To: f.main, Rate: 0.1})
	require.Error(t, err, "%+v", report)
}

// All that is wrong with a configuration is told at once, before the broker is touched.
func TestConfigErrors(t *testing.T) {
	_, err := dlq.Open(t.Context(), dlq.Config{URI: "amqp://guest:secret@127.0.0.1:1/",
		TLS: &tls.Config{MinVersion: tls.VersionTLS13}, Addresses: []string{"amqp://x"}})
	require.ErrorContains(t, err, "TLS: must be nil with a URI of amqp://, over which the password goes unencrypted")
	require.ErrorContains(t, err, "Addresses[0]")
	assert.NotContains(t, err.Error(), "secret")
}

// However often somebody browses, also after it was refused.
func TestRefusedBrowsesLoseNothing(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]any{"4": int64(4), "none given": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arguments := amqp091.Table{amqp091.QueueTypeArg: "quorum"}
			if limit != nil {
				arguments["x-delivery-limit"] = limit
			}
			f := onBroker(t, arguments)
			f.fill(20)
			refused := 0
			for range 25 {
				unsafe := (*dlq.UnsafeError)(nil)
				if _, err := f.queue.Stat(t.Context(), dlq.Filter{}); errors.As(err, &unsafe) {
					refused++
				} else {
					require.NoError(t, err)
				}
			}
			f.Has(f.queue.Name(), 20)
			assert.ElementsMatch(t, deadletter.Bodies(20), rabbit.Bodies(f.drained(f.queue.Name(), 20)),
				"refused %d times", refused)
		})
	}
}

// Two who browse at the same time.
func TestTwoBrowsesAtOnceKeepTheOrder(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]amqp091.Table{"quorum": nil, "classic": classic()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, arguments)
			const n = 500
			f.fill(n)
			ended, whole := make(chan struct{}), atomic.Int32{}
			for range 2 {
				go func() {
					defer func() { ended <- struct{}{} }()
					for range 4 {
						seen := 0
						for _, err := range f.queue.Browse(t.Context(), dlq.Filter{}) {
							// on a busy machine the other one takes longer than this waits
							busy := (*dlq.BusyError)(nil)
							if errors.As(err, &busy) {
								break
							}
							if !assert.NoError(t, err) {
								return
							}
							seen++
						}
						if seen == n {
							whole.Add(1)
						}
					}
				}()
			}
			await.Closed(t, ended, "the one has browsed")
			await.Closed(t, ended, "so has the other one")
			assert.GreaterOrEqual(t, whole.Load(), int32(2), "browses that have seen all")
			f.Has(f.queue.Name(), n)
			got := rabbit.Bodies(f.drained(f.queue.Name(), n))
			wrong := 0
			for i, w := range deadletter.Bodies(n) {
				if got[i] != w {
					wrong++
				}
			}
			assert.Zero(t, wrong, "messages at another place")
		})
	}
}

// New dead letters come while somebody browses, again and again.
func TestBrowsesWhileDeadLettersComeKeepTheOrder(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]amqp091.Table{"quorum": nil, "classic": classic()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, arguments)
			const before, all = 1100, 2000
			f.fill(before)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				var some []amqp091.Publishing
				for i := before; i < all; i++ {
					if some = append(some, deadletter.New(f.main, i)); len(some) == 25 {
						assert.NoError(t, f.TryPublish("", f.queue.Name(), some...))
						some = nil
						<-time.After(15 * time.Millisecond)
					}
				}
			}()
			browses := 0
			for going := true; going; browses++ {
				select {
				case <-ended:
					going = false
				default:
				}
				last := -1
				for deadLetter, err := range f.queue.Browse(t.Context(), dlq.Filter{}) {
					require.NoError(t, err)
					var n int
					_, _ = fmt.Sscanf(string(deadLetter.Message.Body), `{"n":%d}`, &n)
					if n != last+1 {
						t.Fatalf("browse %d: %d after %d", browses, n, last)
					}
					last = n
				}
			}
			f.Has(f.queue.Name(), all)
			assert.Equal(t, deadletter.Bodies(all), rabbit.Bodies(f.drained(f.queue.Name(), all)), "%d browses",
				browses)
		})
	}
}
