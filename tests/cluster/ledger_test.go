//go:build cluster

package cluster

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/testkit/fate"
	"github.com/amqpretry/watermill-retry/retry"
)

// ledger is everything that is known of a run, outside of the brokers. A message's id begins with
// its fate.
//
// The ledger of tests/chaos holds every duplicate against the faults of its time. This one only
// counts duplicates, as a fault of one node can touch a connection to any of them. It measures
// instead how long services pause, and when each goes on with each queue.
type ledger struct {
	mu       sync.Mutex
	sent     map[string]int       // how often it was published: again when the broker did not confirm it in time
	accepted map[string]time.Time // when the broker confirmed it: only those may not be lost
	refused  map[string]error     // of which a publisher said that they are not stored
	calls    []call
	dead     map[string]int // dead letters that a service was told of, or that were found
	found    map[string][]string
}

type call struct {
	at      time.Time
	service string
	queue   string
	id      string
	attempt int
}

func newLedger() *ledger {
	return &ledger{sent: map[string]int{}, accepted: map[string]time.Time{}, refused: map[string]error{},
		dead: map[string]int{}, found: map[string][]string{}}
}

func (l *ledger) note(what func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	what()
}

func (l *ledger) publishes(id string)            { l.note(func() { l.sent[id]++ }) }
func (l *ledger) isAccepted(id string)           { l.note(func() { l.accepted[id] = time.Now() }) }
func (l *ledger) isRefused(id string, err error) { l.note(func() { l.refused[id] = err }) }
func (l *ledger) isDead(id string)               { l.note(func() { l.dead[id]++ }) }
func (l *ledger) isFound(id, reason string) {
	l.note(func() { l.found[id] = append(l.found[id], reason) })
}

func (l *ledger) isCalled(service, queue, id string, attempt int) {
	l.note(func() { l.calls = append(l.calls, call{time.Now(), service, queue, id, attempt}) })
}

// first is when a service was first called for a message of a queue, after a time; zero if it was
// not.
func (l *ledger) first(service, queue string, after time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.calls {
		if c.service == service && c.queue == queue && c.at.After(after) {
			return c.at
		}
	}

	return time.Time{}
}

// missing are the accepted messages that are neither processed nor known to be dead.
func (l *ledger) missing() []string {
	l.mu.Lock()
	defer l.mu.Unlock()

	ended := map[string]bool{}
	for _, c := range l.calls {
		if !fate.Of(c.id).Fails(c.attempt) {
			ended[c.id] = true
		}
	}
	var missing []string
	for id := range l.accepted {
		if fate.Of(id).Dies() && l.dead[id]+len(l.found[id]) == 0 || !fate.Of(id).Dies() && !ended[id] {
			missing = append(missing, id)
		}
	}
	slices.Sort(missing)

	return missing
}

// verdict is what the ledger says in the end.
type verdict struct {
	Messages, NotStored, Calls, DeadLetters int
	Lost                                    []string
	// Wrong is what no fault explains.
	Wrong []string
	// Twice are the messages of which an attempt was handled more than once, or that are dead
	// letters more than once, though they were published once. SentTwice are those that their
	// publisher has published again.
	Twice, SentTwice int
	// Pause is the longest time between two calls of any handler, while messages were published.
	Pause time.Duration
}

func (l *ledger) judge(until time.Time) verdict {
	lost := l.missing()

	l.mu.Lock()
	defer l.mu.Unlock()

	v := verdict{Messages: len(l.accepted), NotStored: len(l.refused), Calls: len(l.calls), DeadLetters: len(l.found)}
	attempts := map[string]map[int]int{}
	slices.SortFunc(l.calls, func(a, b call) int { return a.at.Compare(b.at) })
	for i, c := range l.calls {
		if i > 0 && c.at.Before(until) {
			v.Pause = max(v.Pause, c.at.Sub(l.calls[i-1].at))
		}
		if attempts[c.id] == nil {
			attempts[c.id] = map[int]int{}
		}
		attempts[c.id][c.attempt]++
	}
	for _, id := range lost {
		if len(l.found[id]) == 0 { // counted, whoever was told of it
			v.Lost = append(v.Lost, id)
		}
	}
	for id, n := range l.sent {
		again := len(l.found[id]) > 1
		for _, calls := range attempts[id] {
			again = again || calls > 1
		}
		switch {
		case n > 1:
			v.SentTwice++
		case again:
			v.Twice++
		}
	}
	for id, err := range l.refused {
		if len(attempts[id])+len(l.found[id]) > 0 {
			v.Wrong = append(v.Wrong, fmt.Sprintf("%s was stored, and its publisher said that it was not: %v", id, err))
		}
	}
	for id, calls := range attempts {
		if l.sent[id] == 0 {
			v.Wrong = append(v.Wrong, fmt.Sprintf("%s was not sent", id))
		}
		if last := slices.Max(slices.Collect(maps.Keys(calls))); last > len(delays)+1 {
			v.Wrong = append(v.Wrong, fmt.Sprintf("%s was tried %d times", id, last))
		}
	}
	for id := range l.accepted { // what a service was told of is in the dead-letter queue
		if l.dead[id] > 0 && len(l.found[id]) == 0 {
			v.Lost = append(v.Lost, id)
		}
	}
	for id, reasons := range l.found {
		if !fate.Of(id).Dies() {
			v.Wrong = append(v.Wrong, fmt.Sprintf("%s is a dead letter: %v", id, reasons))
		}
		for _, reason := range reasons {
			if reason != string(retry.ReasonExhausted) {
				v.Wrong = append(v.Wrong, fmt.Sprintf("%s is a dead letter because it was %q", id, reason))
			}
		}
	}

	return v
}

// The ledger finds what is wrong.
func TestLedger(t *testing.T) {
	t.Parallel()

	l := newLedger()
	for _, id := range []string{"ok-1", "ok-2", "once-3", "never-4", "never-5", "never-6", "ok-7"} {
		l.publishes(id)
		l.isAccepted(id)
	}
	l.publishes("ok-8") // never confirmed
	for _, id := range []string{"ok-9", "never-10", "ok-11"} {
		l.publishes(id)
		l.isRefused(id, errors.New("full"))
	}
	l.isCalled("A", "q", "ok-9", 1)
	l.isFound("never-10", "exhausted")
	l.publishes("ok-7")

	l.isCalled("A", "q", "ok-1", 1)
	l.isCalled("A", "q", "ok-1", 1)
	l.isCalled("A", "q", "once-3", 1)
	for _, id := range []string{"never-4", "never-5"} {
		for attempt := range 4 {
			l.isCalled("B", "q", id, attempt+1)
		}
		l.isDead(id)
	}
	l.isFound("never-4", "exhausted")
	l.isCalled("A", "q", "ok-7", 1)
	l.isFound("ok-7", "rejected")

	v := l.judge(time.Now())
	slices.Sort(v.Lost)
	assert.Equal(t, []string{"never-5", "never-6", "ok-2", "once-3"}, v.Lost)
	assert.Equal(t, 1, v.Twice)
	assert.Equal(t, 1, v.SentTwice)
	assert.Equal(t, 7, v.Messages)
	assert.Len(t, v.Wrong, 6, "tried too often, twice; a dead letter that should not be, for a reason that should "+
		"not be; not refused, twice: %v", v.Wrong)
}
