package dlqweb

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// What a run has not done can be planned again, whatever has ended it.
func TestRest(t *testing.T) {
	t.Parallel()
	run := func(change func(*Run)) Run {
		r := Run{State: stateStopped, Confirmed: time.Now(), Plan: dlq.Report{Progress: dlq.Progress{Matched: 10}},
			Report: dlq.Report{Progress: dlq.Progress{Done: 4}}}
		r.wish = wish{Plan: dlq.Plan{Kind: dlq.Replay, Rate: 2, Foreign: true}, Queue: "orders.dlq",
			MainQueue: "orders", Filter: url.Values{"error": {"declined"}}}
		if change != nil {
			change(&r)
		}
		return r
	}
	want := url.Values{"kind": {"replay"}, "queue": {"orders.dlq"}, "main-queue": {"orders"}, "error": {"declined"},
		"rate": {"2/s"}, "foreign": {"yes"}}
	for _, state := range []runState{stateStopped, stateFailed, stateInterrupted} {
		rest := run(func(r *Run) { r.State = state }).Rest()
		assert.Equal(t, want, rest, state)
		assert.NoError(t, onlyKeys(rest, planKeys...), "the page of a plan takes it")
	}
	want.Set("limit", "3")
	assert.Equal(t, want, run(func(r *Run) { r.Limit = 7 }).Rest())
	for name, change := range map[string]func(*Run){
		"done":                 func(r *Run) { r.State = stateDone },
		"running":              func(r *Run) { r.State = stateRunning },
		"discarded":            func(r *Run) { r.State = stateDiscarded },
		"failed while counted": func(r *Run) { r.State, r.Confirmed = stateFailed, time.Time{} },
		"nothing left":         func(r *Run) { r.Done = 10 },
		"all of its limit":     func(r *Run) { r.Limit = 4 },
		"an edit":              func(r *Run) { r.Change = &dlq.Change{} },
		"an import":            func(r *Run) { r.Kind = kindImport },
		"an export":            func(r *Run) { r.Kind = kindExport },
	} {
		assert.Empty(t, run(change).Rest(), name)
	}
}
