package dlq_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// fillReplayed puts dead letters into the queue that have come back as often as their number.
func (f *fixture) fillReplayed(n int) {
	f.fillWith(n, func(i int) amqp091.Publishing {
		state := deadletter.State(f.main, i)
		state.Replays = i
		return deadletter.Of(state, i)
	})
}

// numbers are those of the dead letters in a queue, in their order.
func (f *fixture) numbers(filter dlq.Filter) (all []string) {
	f.t.Helper()
	for l, err := range f.queue.Browse(f.t.Context(), filter) {
		require.NoError(f.t, err)
		all = append(all, strings.TrimPrefix(l.UUID, "uuid-"))
	}

	return all
}

func (f *fixture) run(plan dlq.Plan) dlq.Report {
	f.t.Helper()
	counted, err := f.queue.Plan(f.t.Context(), plan)
	require.NoError(f.t, err)
	r, err := f.queue.Run(f.t.Context(), counted)
	require.NoError(f.t, err)
	assert.Equal(f.t, counted.Counted.Can(), r.Done, "it does what was counted")
	assert.Equal(f.t, counted.Counted.Left, r.Left)

	return r
}

func parkedOnly(is bool) dlq.Filter { return dlq.Filter{Parked: &is} }

func TestReplaysLeaveWhatHasComeBackTooOften(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		plan dlq.Plan
		done int
	}{
		"all":                {dlq.Plan{}, 3},
		"a broad filter":     {dlq.Plan{Filter: dlq.Filter{Handlers: []string{"charge"}}}, 3},
		"included":           {dlq.Plan{IncludeParked: true}, 5},
		"more than that":     {dlq.Plan{IncludeParked: true, Filter: dlq.Filter{MaxReplays: 3}}, 4},
		"by UUID":            {dlq.Plan{Filter: dlq.Filter{UUIDs: []string{"uuid-0", "uuid-4"}}}, 2},
		"parked":             {dlq.Plan{Filter: parkedOnly(true)}, 2},
		"those that are not": {dlq.Plan{Filter: parkedOnly(false)}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, nil)
			f.fillReplayed(5)
			test.plan.Kind = dlq.Replay
			r := f.run(test.plan)
			assert.Equal(t, test.done, r.Done)
			if left := r.Matched - test.done; left > 0 {
				assert.Equal(t, []dlq.Left{{Why: dlq.LeftParked, Messages: left}}, r.Left)
			}
			f.Has(f.main, test.done)
			f.Has(f.queue.Name(), 5-test.done)
		})
	}
}

// A cause is what --fingerprint and the console name: its messages are meant, parked or not.
func TestReplayOfACauseIncludesParked(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fillReplayed(5)
	stat, err := f.queue.Stat(t.Context(), dlq.Filter{})
	require.NoError(t, err)
	assert.Equal(t, 2, stat.Parked)
	require.Len(t, stat.Fingerprints, 1)
	for id := range stat.Fingerprints {
		assert.Equal(t, 5, f.run(dlq.Plan{Kind: dlq.Replay, Filter: dlq.Filter{Fingerprints: []string{id}}}).Done)
	}
}

func TestParkAndUnpark(t *testing.T) {
	t.Parallel()
	f := onQuorumQueues(t)
	f.fillReplayed(5)
	note := `waits for "legal"`
	r := f.run(dlq.Plan{Kind: dlq.Park, Filter: dlq.Filter{UUIDs: []string{"uuid-1"}}, Note: note, By: "ann@host"})
	assert.Equal(t, 1, r.Done)
	f.Has(f.queue.Name(), 5)
	assert.Equal(t, []string{"0", "2", "3", "4", "1"}, f.numbers(dlq.Filter{}), "at the end of the queue")
	assert.Equal(t, []string{"3", "4", "1"}, f.numbers(parkedOnly(true)))
	l, err := f.queue.Get(t.Context(), "uuid-1")
	require.NoError(t, err)
	p := l.Parking()
	require.NotNil(t, p)
	assert.WithinDuration(t, time.Now(), p.At, time.Minute)
	p.At = time.Time{}
	assert.Equal(t, dlq.Parking{By: "ann@host", Note: note}, *p)
	assert.Equal(t, `{"n":1}`, string(l.Message.Body))
	assert.Equal(t, int64(1), l.Message.Headers["tenant"])

	// A move, an undo file and an import keep the note.
	undo := &bytes.Buffer{}
	f.run(dlq.Plan{Kind: dlq.Purge, Filter: dlq.Filter{UUIDs: []string{"uuid-1"}}, Undo: undo})
	_, err = f.queue.Import(t.Context(), undo, dlq.ImportOptions{})
	require.NoError(t, err)
	assert.Equal(t, []string{"3", "4", "1"}, f.numbers(parkedOnly(true)))

	assert.Equal(t, 2, f.run(dlq.Plan{Kind: dlq.Unpark, Filter: dlq.Filter{UUIDs: []string{"uuid-0", "uuid-1",
		"uuid-3"}}}).Done, "only those that are parked")
	assert.Equal(t, []string{"4"}, f.numbers(parkedOnly(true)))
	assert.Equal(t, 4, f.run(dlq.Plan{Kind: dlq.Replay}).Done)
	for _, d := range f.drained(f.main, 4) {
		assert.NotContains(t, d.Headers, header.Parked, "a replay forgets the note")
	}
}

// What the broker or another library has dead-lettered can be parked as well.
func TestParkForeign(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	foreign := []amqp091.Publishing{{Body: []byte("plain")}, {Body: []byte("with CC"), Headers: amqp091.Table{
		"CC": []any{"nobody"}, "NServiceBus.ExceptionInfo.Message": "boom", "NServiceBus.FailedQ": f.main}}}
	f.fillWith(2, func(i int) amqp091.Publishing { return foreign[i] })
	assert.Equal(t, 2, f.run(dlq.Plan{Kind: dlq.Park, Note: "why"}).Done)
	assert.Len(t, f.numbers(parkedOnly(true)), 2)
	assert.Zero(t, f.run(dlq.Plan{Kind: dlq.Replay}).Done)
	assert.Equal(t, 2, f.run(dlq.Plan{Kind: dlq.Replay, IncludeParked: true}).Done)
	for _, d := range f.drained(f.main, 2) {
		assert.NotContains(t, d.Headers, header.Parked)
	}
}

// All that a queue has is parked once, also when more comes in meanwhile than is on its way.
func TestParkALongQueue(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	const n = 3000
	f.fill(n)
	assert.Equal(t, n, f.run(dlq.Plan{Kind: dlq.Park, Note: strings.Repeat("\x01", 500)}).Done)
	f.Has(f.queue.Name(), n)
	stat, err := f.queue.Stat(t.Context(), dlq.Filter{})
	require.NoError(t, err)
	assert.Equal(t, n, stat.Parked)
}

func TestPlansThatCannotPark(t *testing.T) {
	for name, test := range map[string]struct {
		plan dlq.Plan
		want string
	}{
		"no note":            {dlq.Plan{Kind: dlq.Park}, "Plan.Note"},
		"a long note":        {dlq.Plan{Kind: dlq.Unpark, Note: strings.Repeat("x", 501)}, "501 bytes"},
		"a note of a replay": {dlq.Plan{Kind: dlq.Replay, Note: "x"}, "Plan.Note"},
		"another queue":      {dlq.Plan{Kind: dlq.Park, Note: "x", To: "b"}, "empty for a park"},
		"with an undo file":  {dlq.Plan{Kind: dlq.Unpark, Undo: &bytes.Buffer{}}, "Plan.Undo"},
	} {
		assert.ErrorContains(t, test.plan.Validate(), test.want, name)
	}
	assert.NoError(t, dlq.Plan{Kind: dlq.Park, Note: strings.Repeat("x", 500)}.Validate())
}

// Whoever can publish can write the header.
func TestForgedParking(t *testing.T) {
	for _, text := range []any{"", "x", "[]", `{"at":"0000-01-01T00:00:00+14:00"}`, `{}`, int64(7),
		`{"at":"2026-01-02T03:04:05Z","note":"` + strings.Repeat("x", wire.MaxParkedBytes) + `"}`} {
		l := dlq.DeadLetter{Message: amqp091.Publishing{Headers: amqp091.Table{header.Parked: text}}}
		assert.Nil(t, l.Parking(), text)
		assert.False(t, l.IsParked())
	}
}

// A run that is interrupted loses no message, and leaves at most those twice that it reports.
func TestParkIsInterrupted(t *testing.T) {
	t.Parallel()
	f := onQuorumQueues(t)
	const n = 1000
	f.fill(n)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := f.queue.Run(ctx, dlq.Plan{Kind: dlq.Park, Note: "why", Progress: func(p dlq.Progress) {
		if p.Done > 100 {
			cancel()
		}
	}})
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, r.Done, n)
	seen := map[string]bool{}
	all := f.numbers(dlq.Filter{})
	for _, number := range all {
		seen[number] = true
	}
	assert.Len(t, seen, n)
	assert.LessOrEqual(t, len(all)-n, r.Unsettled)
	assert.Len(t, f.numbers(parkedOnly(true)), r.Done+len(all)-n)
}

// A queue that is full has room for as many messages as it gives away.
func TestParkInAFullQueue(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		for _, overflow := range []string{"drop-head", "reject-publish"} {
			t.Run(kind+" "+overflow, func(t *testing.T) {
				t.Parallel()
				arguments := amqp091.Table{amqp091.QueueTypeArg: kind, amqp091.QueueMaxLenArg: int64(50),
					amqp091.QueueOverflowArg: overflow}
				if kind == "quorum" {
					arguments["x-delivery-limit"] = int64(1<<31 - 1)
				}
				f := onBroker(t, arguments)
				f.fill(50)
				assert.Equal(t, 50, f.run(dlq.Plan{Kind: dlq.Park, Note: "why"}).Done)
				assert.Len(t, f.numbers(parkedOnly(true)), 50)
			})
		}
	}
}
