package dlqweb

import (
	"context"
	"fmt"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// pace measures the current rate of a run.
type pace struct {
	began, next         time.Time
	doneBegan, doneNext int
}

// paceSpan is the least time over which the rate is measured.
const paceSpan = 5 * time.Second

func (p *pace) saw(now time.Time, done int) {
	switch {
	case p.began.IsZero():
		p.began, p.next, p.doneBegan, p.doneNext = now, now, done, done
	case now.Sub(p.next) > paceSpan:
		p.began, p.doneBegan, p.next, p.doneNext = p.next, p.doneNext, now, done
	}
}

// perSecond is 0 where that is not known yet.
func (p *pace) perSecond(now time.Time, done int) float64 {
	const least = time.Second
	if took := now.Sub(p.began); !p.began.IsZero() && took > least {
		return float64(done-p.doneBegan) / took.Seconds()
	}

	return 0
}

// speed returns how fast a run is, and how long it still takes. Both are empty before the first
// seconds and after the run.
func (r *running) speed(now time.Time) (pace, left string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rate := r.pace.perSecond(now, r.run.Done)
	if r.run.State != stateRunning || rate <= 0 {
		return "", ""
	}
	digits := 0
	if rate < 10 {
		digits = 1
	}
	rest := time.Duration(float64(r.run.Most()-r.run.Done) / rate * float64(time.Second))

	return fmt.Sprintf("%.*f/s", digits, rate), "about " + units.Elapsed(rest)
}

// fate is what has become of the messages of a replay, as far as the console can see.
type fate struct {
	// FailedAgain are in the dead-letter queue once more, as At has seen; nil before that was read.
	FailedAgain *int
	At          time.Time
	// Pending is the most that may still be in the main queue or wait for a retry: what there is of
	// all messages; nil if nobody tells.
	Pending *int64
	// Handled is the least that has gone: handled, or taken by somebody else. Nil if not known.
	Handled *int
	// Snapshot is what a refresh is to replace.
	Snapshot string
	// Since is how much the dead-letter queue has grown since At.
	Since int64
}

// fateOf returns the fate of a finished replay to the main queue; nil for other runs.
func (c *Console) fateOf(ctx context.Context, r Run) *fate {
	if r.Kind != dlq.Replay || r.Run == "" || r.Done == 0 || !r.State.IsOver() || r.To != "" {
		return nil
	}
	t := r.target()
	f := &fate{}
	sample := c.sampler.overview(ctx)
	state, _ := sample.state(t)
	if waiting := sum(state.Retry); waiting != nil && state.Main != nil && state.Main.Messages != nil {
		pending := *waiting + *state.Main.Messages
		f.Pending = &pending
	}
	now := c.snapshots.view(t, wantNothing, "")
	f.Snapshot = now.ID()
	if now.Snapshot == nil || now.Began.Before(r.Ended) {
		return f
	}
	again := now.Replayed(r.Run)
	f.FailedAgain, f.At = &again, now.Began
	if state.Messages != nil && sample.At.After(now.Ended) {
		f.Since = max(0, *state.Messages-int64(now.Len()))
	}
	if f.Pending != nil {
		handled := dlq.Handled(r.Done, again, *f.Pending, f.Since)
		f.Handled = &handled
	}

	return f
}
