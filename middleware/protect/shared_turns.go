package protect

import (
	"context"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// turnsState is what instances share of a rate limit.
type turnsState struct {
	// next is the theoretical arrival time of the generic cell rate algorithm: the turn of the next
	// call, if there were no burst.
	next time.Time
	// back is when the latest of the postponed messages comes back.
	back time.Time
}

// pace is a limit as the algorithm takes it.
type pace struct {
	each  time.Duration // how far turns are apart
	burst time.Duration // how far a turn may be ahead of its time
	apart time.Duration // how far messages that come back are apart
}

func newPace(limit rate.Limit, burst int) pace {
	const longest, most = 1e17, 4e18 // ns: three years, and so many that a time as long from now is still a number
	each := min(max(float64(time.Second)/float64(limit), 1), longest)

	return pace{
		each: time.Duration(each), burst: time.Duration(min(each*float64(burst-1), most)),
		apart: time.Duration(min(each, float64(maxTurn))),
	}
}

// take takes a turn that comes in time, and tells how long to wait for it. Where none does, it
// takes nothing, and tells when to come back.
func (s turnsState) take(now time.Time, p pace, within time.Duration) (after turnsState, wait time.Duration, ok bool) {
	next := s.next
	if next.Before(now) {
		next = now
	}
	wait = max(next.Add(-p.burst).Sub(now), 0)
	if wait <= within {
		s.next = next.Add(p.each)

		return s, wait, true
	}
	wait = min(max(wait, s.back.Add(p.apart).Sub(now)), maxTurn)
	s.back = now.Add(wait)

	return s, wait, false
}

// giveBack gives back a turn, unless later ones count on it.
func (s turnsState) giveBack(taken turnsState, p pace) turnsState {
	if s.next.Equal(taken.next) {
		s.next = s.next.Add(-p.each)
	}

	return s
}

// String is how the state is stored: two times, in nanoseconds.
func (s turnsState) String() string {
	return strconv.FormatInt(nanos(s.next), 10) + " " + strconv.FormatInt(nanos(s.back), 10)
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}

	return t.UnixNano()
}

// parseTurns reads a state. One that is not readable is none.
func parseTurns(text []byte) turnsState {
	next, back, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseInt(next, 10, 64)
	if err != nil {
		return turnsState{}
	}
	b, err := strconv.ParseInt(back, 10, 64)
	if err != nil {
		return turnsState{}
	}

	return turnsState{next: time.Unix(0, n), back: time.Unix(0, b)}
}

// sharedTurns gives messages of all instances their turns.
type sharedTurns struct {
	shared
	pace
}

func newSharedTurns(c RateLimitConfig, report func(error)) *sharedTurns {
	p := newPace(c.Limit, c.Burst)
	// Those that wait in place can be many, and have their turns long after the last change.
	const waiting = 1000
	keep := min(waiting*float64(p.each), 1e18)

	return &sharedTurns{
		shared: shared{values: c.Shared, keep: sharedKeep + maxTurn + p.burst + time.Duration(keep), report: report},
		pace:   p,
	}
}

// next takes a turn of all instances. It is not asked if the store does not answer.
func (t *sharedTurns) next(ctx context.Context, name string, within time.Duration) (turn, time.Duration, bool) {
	var taken turnsState
	var wait time.Duration
	var ok bool
	if !t.update(ctx, name, func(now time.Time, old []byte) []byte {
		taken, wait, ok = parseTurns(old).take(now, t.pace, within)

		return []byte(taken.String())
	}) {
		return nil, 0, false
	}
	if !ok {
		return nil, wait, true
	}

	return sharedTurn{t, name, taken, time.Now().Add(wait)}, wait, true
}

// sharedTurn is a turn that was taken.
type sharedTurn struct {
	turns *sharedTurns
	name  string
	taken turnsState
	at    time.Time
}

func (t sharedTurn) Delay() time.Duration { return max(time.Until(t.at), 0) }

func (t sharedTurn) Cancel() {
	t.turns.update(context.Background(), t.name, func(_ time.Time, old []byte) []byte {
		return []byte(parseTurns(old).giveBack(t.taken, t.turns.pace).String())
	})
}
