package dlq_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// service consumes the main queue, and says of canaries what fate gives for each, as a service with
// this library does. It returns those without a canary's mark.
func (f *fixture) service(fate func(number int) []wire.Outcome) (others func() int) {
	channel := f.Channel()
	deliveries := rabbit.Consume(f.t, channel, f.main)
	var (
		mu       sync.Mutex
		unmarked int
	)
	go func() {
		for d := range deliveries {
			text, _ := d.Headers[header.Canary].(string)
			c, ok := wire.ReadCanary(text)
			if !ok {
				mu.Lock()
				unmarked++
				mu.Unlock()

				continue
			}
			for _, outcome := range fate(c.Number) {
				n := wire.Notice{Canary: c, Outcome: outcome}
				_ = channel.Publish("", n.Queue, false, false, amqp091.Publishing{Headers: n.Headers()})
			}
		}
	}()

	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return unmarked
	}
}

func all(outcomes ...wire.Outcome) func(int) []wire.Outcome {
	return func(int) []wire.Outcome { return outcomes }
}

// Nobody handles the canary, so it has not passed, and nothing is sent.
func TestCanaryWithoutAConsumer(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(12)
	report, err := f.queue.Run(t.Context(),
		dlq.Plan{Kind: dlq.Replay, Canary: dlq.Canary{Messages: 2, Watch: 3 * time.Second}})
	require.NoError(t, err)
	assert.Contains(t, report.Canary.Stopped, "has no consumer")
	assert.Zero(t, report.Done)
	f.Has(f.main, 0)
	f.Has(f.queue.Name(), 12)
}

// Whoever consumes says nothing: it is not known that the canary was handled.
func TestCanaryThatNobodyTellsOf(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(12)
	f.service(all())
	report, err := f.queue.Run(t.Context(),
		dlq.Plan{Kind: dlq.Replay, Canary: dlq.Canary{Messages: 2, Watch: 2 * time.Second}})
	require.NoError(t, err)
	assert.Equal(t, `0 of 2 handled, 2 without a result yet after 2s; check that a service consumes "`+f.main+
		`" with this library, under a policy other than off, as a user with write permission on amq.default`,
		report.Canary.Stopped)
	assert.Equal(t, 2, report.Canary.Unresolved)
	assert.Equal(t, 2, report.Done)
	f.Has(f.queue.Name(), 10)
}

// The watch is shorter than the retries take.
func TestCanaryThatIsStillRetried(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(12)
	f.service(func(number int) []wire.Outcome {
		if number == 1 {
			return []wire.Outcome{wire.Retried, wire.Handled}
		}
		return []wire.Outcome{wire.Retried}
	})
	const want = "1 of 2 handled, 1 waiting for a retry"
	var report dlq.Report
	var last string
	left := 12
	// On a machine that stands still the service may not have said all within 2 s: then it has a
	// minute.
	for _, watch := range []time.Duration{2 * time.Second, time.Minute} {
		var err error
		report, err = f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Canary: dlq.Canary{
			Messages: 2, Watch: watch, OnChange: func(r dlq.CanaryReport) { last = r.String() },
		}})
		require.NoError(t, err)
		left -= 2
		f.Has(f.queue.Name(), left)
		if last == want {
			assert.Equal(t, want+" after "+strings.TrimSuffix(watch.String(), "0s"), report.Canary.Stopped)
			return
		}
	}
	assert.Equal(t, want, last)
}

func TestCanaryStopsTheReplay(t *testing.T) {
	t.Parallel()
	for _, bad := range []wire.Outcome{wire.DeadLettered, wire.Dropped} {
		t.Run(string(bad), func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, nil)
			f.fill(50)
			f.service(func(number int) []wire.Outcome {
				if number == 2 {
					return []wire.Outcome{wire.Handled, bad} // what it has heard in the end counts
				}
				return []wire.Outcome{wire.Retried, bad}
			})
			report, err := f.queue.Run(t.Context(),
				dlq.Plan{Kind: dlq.Replay, Canary: dlq.Canary{Messages: 5, Watch: time.Minute, Tolerate: 2}})
			require.NoError(t, err)
			assert.NotEmpty(t, report.Canary.Stopped)
			assert.Equal(t, 3, report.Canary.DeadLettered+report.Canary.Dropped)
			assert.Equal(t, 5, report.Done)
			f.Has(f.queue.Name(), 45)
		})
	}
}

func TestCanaryLetsTheOthersFollow(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(50)
	f.Publish(f.queue.Name(), deadletter.New("another", 99)) // another queue's takes no number
	others := f.service(func(number int) []wire.Outcome {
		if number == 3 {
			return []wire.Outcome{wire.DeadLettered}
		}
		return []wire.Outcome{wire.Handled}
	})
	var last dlq.Progress
	report, err := f.queue.Run(t.Context(), dlq.Plan{
		Kind:   dlq.Replay,
		Canary: dlq.Canary{Messages: 5, Watch: time.Minute, Tolerate: 1}, Limit: 20, Progress: func(p dlq.Progress) {
			last = p
		},
	})
	require.NoError(t, err)
	assert.Empty(t, report.Canary.Stopped)
	assert.Equal(t, 20, report.Done)
	assert.Equal(t, 20, last.Done)
	assert.Equal(t, 51, report.Total)
	await.Until(t, func() bool { return others() == 15 }, "the others are nobody's canaries")
	assert.Equal(t, append(deadletter.Bodies(50)[20:], `{"n":99}`), rabbit.Bodies(f.drained(f.queue.Name(), 31)))
}

// The others include what the canary's pass has left: it counts once.
func TestCanaryCountsRefusedEditsOnce(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(20)
	f.service(all(wire.Handled))
	report, err := f.queue.Run(t.Context(), dlq.Plan{
		Kind: dlq.Replay, Canary: dlq.Canary{Messages: 5, Watch: time.Minute},
		Edit: func(p *amqp091.Publishing) error {
			if string(p.Body) == `{"n":1}` {
				return errors.New("no")
			}
			return nil
		},
	})
	require.NoError(t, err)
	assert.Empty(t, report.Canary.Stopped)
	assert.Equal(t, 19, report.Done)
	assert.Equal(t, []dlq.Left{{Why: dlq.LeftEdit, Messages: 1}}, report.Left)
	assert.Equal(t, []dlq.EditFailure{{Why: "no", UUID: "uuid-1", Messages: 1}}, report.EditErrors)
	require.EqualError(t, report.EditError, "no")
}

// Dead letters that arrive during a run are behind the others after it: also those on their way to
// a consumer when the run ends. The broker returns these late, before the rest.
func TestArrivalsDuringARunKeepTheOrder(t *testing.T) {
	t.Parallel()
	const deadLetters, rounds = 500, 8
	for range rounds {
		f := onBroker(t, nil)
		f.fill(deadLetters)
		f.service(all(wire.Handled))
		ended, published := make(chan struct{}), make(chan int, 1)
		go func() {
			n := deadLetters
			defer func() { published <- n }()
			for ; ; n++ {
				select {
				case <-ended:
					return
				default:
					assert.NoError(t, f.TryPublish("", f.queue.Name(), deadletter.New(f.main, n)))
				}
			}
		}()
		report, err := f.queue.Run(t.Context(), dlq.Plan{
			Kind:   dlq.Replay,
			Filter: dlq.Filter{Where: func(l *dlq.DeadLetter) bool { return l.LastFailure.Second()%2 == 0 }},
			Canary: dlq.Canary{Messages: 5, Watch: time.Minute},
		})
		close(ended)
		left := rabbit.Bodies(f.drained(f.queue.Name(), <-published-report.Done))
		require.NoError(t, err)
		assert.True(t, slices.IsSortedFunc(left, func(a, b string) int {
			return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) // by number
		}), "%v", left)
	}
}

// Notices that are not of this run, or nonsense, tell nothing.
func TestCanaryHearsOthers(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(12)
	f.service(all())
	channel := f.Channel()
	lock := f.queue.Name() + ".lock"
	say := func(headers amqp091.Table) {
		_ = channel.Publish("", lock, false, false, amqp091.Publishing{Headers: headers})
	}
	report, err := f.queue.Run(t.Context(), dlq.Plan{
		Kind: dlq.Replay, Canary: dlq.Canary{Messages: 1, Watch: 2 * time.Second,
			OnChange: func(dlq.CanaryReport) {
				say(nil)
				say(amqp091.Table{header.Canary: int64(1)})
				say(wire.Notice{Canary: wire.Canary{Queue: lock, Run: "another", Number: 1},
					Outcome: wire.Handled}.Headers())
			}}})
	require.NoError(t, err)
	assert.NotEmpty(t, report.Canary.Stopped)
	assert.Equal(t, 1, report.Canary.Unresolved)
}

// The connection that listens is lost: nobody knows what becomes of the canary, and that is an
// error.
func TestCanaryIsInterrupted(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(12)
	f.service(all())
	ctx, cancel := context.WithCancel(t.Context())
	report, err := f.queue.Run(ctx,
		dlq.Plan{Kind: dlq.Replay, Canary: dlq.Canary{Messages: 2, OnChange: func(dlq.CanaryReport) { cancel() }}})
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, 2, report.Done)
	assert.Equal(t, 2, report.Canary.Unresolved)
	assert.Equal(t, "0 of 2 handled, 2 without a result yet when it was interrupted", report.Canary.Stopped)
	f.Has(f.queue.Name(), 10)

	report, err = f.queue.Run(t.Context(),
		dlq.Plan{Kind: dlq.Replay, Canary: dlq.Canary{Messages: 2,
			OnChange: func(dlq.CanaryReport) { _ = f.client.Close() }}})
	require.ErrorContains(t, err, "results was lost")
	assert.Equal(t, "0 of 2 handled, 2 without a result yet when the connection was lost", report.Canary.Stopped)
	assert.Equal(t, 2, report.Done)
}

// Where no others follow, nobody waits for what becomes of a canary, whatever has ended the run.
func TestCanaryOfAll(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{0, 3, 5} {
		f := onBroker(t, nil)
		f.fill(3)
		f.service(all())
		report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Limit: limit,
			Canary: dlq.Canary{Messages: 3}})
		require.NoError(t, err)
		assert.Equal(t, 3, report.Done)
		assert.Equal(t, dlq.CanaryReport{Sent: 3, Unresolved: 3}, report.Canary)
	}
}

// One run is one run, with a canary as well: whoever imports its undo file is asked once.
func TestUndoOfACanary(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(6)
	f.service(func(int) []wire.Outcome {
		<-time.After(1100 * time.Millisecond) // the file has whole seconds
		return []wire.Outcome{wire.Handled}
	})
	var undo bytes.Buffer
	report, err := f.queue.Run(t.Context(), dlq.Plan{
		Kind: dlq.Replay, Canary: dlq.Canary{Messages: 1, Watch: time.Minute},
		Undo: &undo})
	require.NoError(t, err)
	require.Equal(t, 6, report.Done)
	asked := 0
	_, err = f.queue.Import(t.Context(), &undo, dlq.ImportOptions{Taken: func(dlq.Taken) error { asked++; return nil }})
	require.NoError(t, err)
	assert.Equal(t, 1, asked)
}

// A message that has no room for the mark of a canary is none, and stays for the others.
func TestCanaryWithoutRoomForItsMark(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	const sizes = 100 // the mark fits into a frame beside some of them; others do not fit themselves
	f.fillWith(sizes, func(i int) amqp091.Publishing {
		p := deadletter.New(f.main, i)
		p.Headers["own"] = strings.Repeat("x", 128_400+18*i)

		return p
	})
	unmarked := f.service(all(wire.Handled))
	report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Canary: dlq.Canary{Messages: sizes}})
	require.NoError(t, err)
	assert.Positive(t, report.Done)
	tooLarge := report.LeftBehind()
	assert.Equal(t, sizes, report.Done+tooLarge)
	assert.Equal(t, report.Done, report.Canary.Sent)

	report, err = f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay})
	require.NoError(t, err)
	assert.Positive(t, report.Done, "without the mark they fit")
	await.Until(t, func() bool { return unmarked() == report.Done })
}
