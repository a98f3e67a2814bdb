package dlq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	"github.com/amqpretry/watermill-retry/retry"
)

func TestReplay(t *testing.T) {
	t.Parallel()
	f := onQuorumQueues(t)
	f.fill(300)

	plan, err := f.queue.Plan(t.Context(),
		dlq.Plan{Kind: dlq.Replay, Filter: dlq.Filter{Headers: map[string]string{"tenant": "1"}}})
	require.NoError(t, err)
	assert.Equal(t, dlq.Progress{Total: 300, Seen: 300, Matched: 100}, plan.Counted.Progress)
	assert.Equal(t, 100, plan.Most())
	f.Has(f.queue.Name(), 300)

	var undo bytes.Buffer
	report, err := f.queue.Run(t.Context(),
		dlq.Plan{Kind: dlq.Replay, Filter: dlq.Filter{Headers: map[string]string{"tenant": "1"}}, Undo: &undo})
	require.NoError(t, err)
	assert.Equal(t, dlq.Progress{Total: 300, Seen: 300, Matched: 100, Done: 100}, report.Progress)
	f.Has(f.queue.Name(), 200)
	assert.Equal(t, 100, strings.Count(undo.String(), "\n"))
	assert.Equal(t, 100, strings.Count(undo.String(), fmt.Sprintf(`,"taken":{"by":"replay","to":%q,"run":%q,"at":"20`,
		f.main, report.Run)))

	for i, d := range f.drained(f.main, 100) {
		n := 3*i + 1
		require.Equal(t, fmt.Sprintf(`{"n":%d}`, n), string(d.Body))
		require.Equal(t, int64(1), d.Headers["tenant"])
		require.Equal(t, "application/json", d.ContentType)
		require.NotContains(t, d.Headers, header.PoisonReason, "a stock consumer would take it for its own")
		require.NotContains(t, d.Headers, header.Deadline)
		require.Equal(t, report.Run, d.Headers[header.Replay])

		state, kind := wire.Read(d.Headers, wire.Reading{Queue: f.main, MaxRetries: 3})
		require.Equal(t, wire.Replay, kind)
		require.Equal(t, 1, state.Replays)
		require.Equal(t, 0, state.Count)
		require.Equal(t, 4, state.Attempts)
		require.Equal(t, retry.ReasonExhausted, state.History[len(state.History)-1].Reason, "the earlier reason")
		require.Equal(t, "events", state.Arrival.Exchange)
	}
	left := rabbit.Bodies(f.drained(f.queue.Name(), 200))
	for i := range left {
		require.Equal(t, fmt.Sprintf(`{"n":%d}`, i/2*3+i%2*2), left[i], "the others, in their order")
	}
}

func TestReplayOfWhatTheBrokerHasDeadLettered(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	source := f.main + "-source"
	f.Declare(source, amqp091.Table{amqp091.QueueTypeArg: "classic", "x-dead-letter-exchange": "",
		"x-dead-letter-routing-key": f.queue.Name(), "x-message-ttl": int64(1)})
	f.Publish(source, amqp091.Publishing{Body: []byte("x"), Expiration: "60000", UserId: "guest",
		Headers: amqp091.Table{"a": int64(1)}})
	f.Has(f.queue.Name(), 1)

	queue := f.client.DeadLetterQueue(f.queue.Name(), source)
	deadLetter := only(t, queue)
	assert.Equal(t, retry.ReasonExpired, deadLetter.Reason)
	report, err := queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, To: f.main})
	require.NoError(t, err)
	assert.Equal(t, 1, report.Done)

	d := f.drained(f.main, 1)[0]
	assert.NotContains(t, d.Headers, header.Death)
	assert.Empty(t, d.Expiration)
	assert.Empty(t, d.UserId)
	assert.Equal(t, int64(1), d.Headers["a"])
	state, kind := wire.Read(d.Headers, wire.Reading{Queue: f.main, MaxRetries: 3})
	assert.Equal(t, wire.Replay, kind)
	assert.Equal(t, source, state.Arrival.RoutingKey)
	assert.Equal(t, "guest", state.Arrival.UserID)
}

func only(t *testing.T, queue *dlq.Queue) dlq.DeadLetter {
	t.Helper()
	var all []dlq.DeadLetter
	for deadLetter, err := range queue.Browse(t.Context(), dlq.Filter{}) {
		require.NoError(t, err)
		all = append(all, deadLetter)
	}
	require.Len(t, all, 1)

	return all[0]
}

func TestReplayEdited(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(3)
	var undo bytes.Buffer
	edit := func(p *amqp091.Publishing) error {
		if string(p.Body) == `{"n":1}` {
			return errors.New("not this one")
		}
		for key := range p.Headers {
			if header.IsOwn(key) {
				t.Errorf("ours is not to be edited: %s", key)
			}
		}
		copy(p.Body, "[") // also in place
		p.Headers["tenant"] = "changed"
		p.Headers[header.Count] = "7"

		return nil
	}
	report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Edit: edit, By: "anna", Undo: &undo})
	require.NoError(t, err)
	assert.Equal(t, 2, report.Done)
	assert.Equal(t, []dlq.Left{{Why: dlq.LeftEdit, Messages: 1}}, report.Left)
	require.EqualError(t, report.EditError, "not this one")
	assert.Contains(t, undo.String(), `"{\"n\":0}"`, "as it was")
	assert.NotContains(t, undo.String(), "changed")

	d := f.drained(f.main, 2)[0]
	assert.Equal(t, `["n":0}`, string(d.Body))
	assert.Equal(t, "changed", d.Headers["tenant"])
	assert.Equal(t, "-1", d.Headers[header.Count])

	// It dies again: the history is still with it.
	f.Publish(f.queue.Name(), amqp091.Publishing{Headers: d.Headers, Body: d.Body})
	deadLetter, err := f.queue.Get(t.Context(), "uuid-0")
	require.NoError(t, err)
	require.Len(t, deadLetter.Edits, 1)
	assert.Equal(t, "anna", deadLetter.Edits[0].By)
	assert.Equal(t, `{"n":0}`, deadLetter.Edits[0].Body)
}

// A target with a limit is counted before, which edits as well.
func TestReplayReportsEdits(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]amqp091.Table{"a target": nil, "one with a limit": {
		amqp091.QueueMaxLenArg: int64(1000)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, nil)
			to := f.main + ".to"
			f.Declare(to, limit)
			f.fill(60)
			edit := func(p *amqp091.Publishing) error {
				switch n := p.Headers["tenant"]; {
				case string(p.Body) == `{"n":7}`:
					return errors.New("seven")
				case n == int64(1):
					return fmt.Errorf("no: %s", p.Body)
				case n == int64(2):
					p.Body = []byte("changed")
				}
				return nil
			}
			r, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, To: to, Edit: edit})
			require.NoError(t, err)
			assert.Equal(t, 40, r.Done)
			assert.Equal(t, 20, r.Edited)
			require.Len(t, r.EditErrors, 20)
			assert.Equal(t, dlq.EditFailure{Why: `no: {"n":1}`, UUID: "uuid-1", Messages: 1}, r.EditErrors[0])
			assert.Equal(t, "seven", r.EditErrors[2].Why)
			assert.Equal(t, dlq.EditFailure{UUID: "uuid-58", Messages: 1}, r.EditErrors[19])
			require.EqualError(t, r.EditError, `no: {"n":1}`)
		})
	}
}

func TestReplayReportsForeign(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(2)
	f.Publish(f.queue.Name(), deadletter.New("another", 2))
	report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay})
	require.NoError(t, err)
	assert.Equal(t, []dlq.Left{{Why: dlq.LeftForeign, Messages: 1}}, report.Left)
	assert.Equal(t, 2, report.Done)
	report, err = f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Foreign: true})
	require.NoError(t, err)
	assert.Equal(t, 1, report.Done)
	state, kind := wire.Read(f.drained(f.main, 3)[2].Headers, wire.Reading{Queue: f.main, MaxRetries: 3})
	assert.Equal(t, wire.Replay, kind, "it is this queue's now")
	assert.Equal(t, 1, state.Replays)
}

// returning puts what comes to the main queue back among the dead letters, as a service does that
// fails again.
func (f *fixture) returning(ctx context.Context) {
	channel := f.Channel()
	deliveries := rabbit.Consume(f.t, channel, f.main)
	go func() {
		for {
			select {
			case d, ok := <-deliveries:
				if !ok {
					return
				}
				_ = channel.Publish("", f.queue.Name(), true, false, amqp091.Publishing{Headers: d.Headers,
					Body: d.Body})
			case <-ctx.Done():
				return
			}
		}
	}()
}

func TestReplayNeverTwiceInOneRun(t *testing.T) {
	t.Parallel()
	f := onQuorumQueues(t)
	f.fill(200)
	f.returning(t.Context())
	report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Rate: 400})
	require.NoError(t, err)
	assert.LessOrEqual(t, report.Done, 200)
	f.Has(f.queue.Name(), 200)
}

func TestTwoReplaysAtOnce(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(100)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun, ended := make(chan struct{}), make(chan error)
	go func() {
		_, err := f.queue.Run(ctx, dlq.Plan{Kind: dlq.Replay, Rate: 1, Progress: func(p dlq.Progress) {
			if p.Matched == 1 {
				close(begun)
			}
		}})
		ended <- err
	}()
	<-begun
	var others sync.WaitGroup
	for name, run := range map[string]func() error{ // side by side, as each of them waits some seconds
		"replay": func() error { _, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay}); return err },
		"move":   func() error { _, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Move, To: f.main}); return err },
		"purge":  func() error { _, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Purge}); return err },
		// it would give messages back in another order
		"browse": func() error { _, err := f.queue.Stat(t.Context(), dlq.Filter{}); return err },
	} {
		others.Go(func() {
			busy := (*dlq.BusyError)(nil)
			if assert.ErrorAs(t, run(), &busy, name) {
				assert.Equal(t, f.queue.Name()+".lock", busy.Lock)
			}
		})
	}
	others.Wait()
	_, err := f.queue.Depth(t.Context())
	require.NoError(t, err)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	await.Until(t, func() bool {
		_, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Purge})
		return err == nil
	})
}

func TestReplayWithoutATarget(t *testing.T) {
	t.Parallel()
	f := onQuorumQueues(t)
	f.fill(300)
	missing := (*dlq.NoQueueError)(nil)
	_, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, To: "nobody-" + f.main})
	require.ErrorAs(t, err, &missing)
	assert.Equal(t, "target", missing.What)

	// And one that goes while it is at work.
	deleted := false
	report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Rate: 500, Progress: func(p dlq.Progress) {
		if p.Done >= 20 && !deleted {
			deleted = true
			f.Remove("", f.main)
		}
	}})
	require.ErrorAs(t, err, &missing)
	f.Has(f.queue.Name(), 300-report.Done)
	assert.Less(t, report.Done, 300)
}

func TestReplayWaitsForAFullQueue(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	full := f.main + "-full"
	f.Declare(full, amqp091.Table{amqp091.QueueTypeArg: "quorum", "x-max-length": int64(20),
		"x-overflow": "reject-publish"})
	f.fill(100)
	channel := f.Channel()
	go func() { // takes 10 every 100 ms
		for t.Context().Err() == nil {
			for range 10 {
				_, _, _ = channel.Get(full, true)
			}
			<-time.After(100 * time.Millisecond)
		}
	}()
	report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, To: full})
	require.NoError(t, err)
	assert.Equal(t, 100, report.Done)
	f.Has(f.queue.Name(), 0)
}

func TestInterruptedReplayGoesOn(t *testing.T) {
	t.Parallel()
	f := onQuorumQueues(t)
	const deadLetters = 1500
	f.fill(deadLetters)
	ctx, cancel := context.WithCancel(t.Context())
	first, err := f.queue.Run(ctx, dlq.Plan{Kind: dlq.Replay, Progress: func(p dlq.Progress) {
		if p.Done > 500 {
			cancel()
		}
	}})
	require.ErrorIs(t, err, context.Canceled)
	f.Has(f.main, first.Done)
	f.Has(f.queue.Name(), deadLetters-first.Done)
	second, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay})
	require.NoError(t, err)
	assert.Equal(t, deadLetters, first.Done+second.Done)
	assert.Equal(t, deadletter.Bodies(deadLetters), rabbit.Bodies(f.drained(f.main, deadLetters)),
		"each once, in order")
}
