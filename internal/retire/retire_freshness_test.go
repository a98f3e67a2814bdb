package retire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

func sample(leader string, reductions int64) httpapi.Queue {
	return httpapi.Queue{Leader: leader, Node: leader, Reductions: &reductions,
		Members: []string{"a", "b", "c"}, Online: []string{"a", "b"}}
}

func minority(q httpapi.Queue) httpapi.Queue {
	q.Online = q.Online[:1]
	return q
}

func noMembers(reductions int64) httpapi.Queue { return httpapi.Queue{Reductions: &reductions} }

func TestFreshness(t *testing.T) {
	type answer struct {
		second int
		queue  httpapi.Queue
	}
	for name, test := range map[string]struct {
		classic bool
		answers []answer
		certain bool
	}{
		"no answer": {false, nil, false},
		"three renewals": {false, []answer{{2, sample("a", 1)}, {3, sample("a", 2)}, {4, sample("a", 3)},
			{5, sample("a", 4)}}, true},
		"two renewals": {false, []answer{{2, sample("a", 1)}, {3, sample("a", 2)}, {4, sample("a", 3)},
			{60, sample("a", 3)}}, false},
		"before it has settled": {false, []answer{{0, sample("a", 1)}, {1, sample("a", 2)}, {2, sample("a", 3)},
			{3, sample("a", 4)}, {4, sample("a", 5)}}, false},
		"another leader": {false, []answer{{2, sample("a", 1)}, {3, sample("a", 2)}, {4, sample("b", 3)},
			{5, sample("b", 4)}, {6, sample("b", 5)}}, false},
		"another leader settles": {false, []answer{{2, sample("a", 1)}, {3, sample("b", 2)}, {4, sample("b", 3)},
			{5, sample("b", 4)}, {6, sample("b", 5)}}, true},
		"a restart": {false, []answer{{2, sample("a", 11)}, {3, sample("a", 12)}, {4, sample("a", 13)},
			{5, sample("a", 1)}, {6, sample("a", 2)}}, false},
		"a gap": {false, []answer{{2, sample("a", 1)}, {3, sample("a", 2)}, {4, sample("a", 3)},
			{5, httpapi.Queue{}}, {6, sample("a", 4)}}, false},
		"no majority meanwhile": {false, []answer{{2, sample("a", 1)}, {3, sample("a", 2)},
			{4, minority(sample("a", 3))}, {5, sample("a", 4)}, {6, sample("a", 5)}}, false},
		"no majority": {false, []answer{{2, minority(sample("a", 1))}, {3, minority(sample("a", 2))},
			{4, minority(sample("a", 3))}, {5, minority(sample("a", 4))}}, false},
		"members are unknown": {false, []answer{{2, noMembers(1)}, {3, noMembers(2)}, {4, noMembers(3)},
			{5, noMembers(4)}}, false},
		"no statistics at all": {false, []answer{{2, httpapi.Queue{}}, {30, httpapi.Queue{}},
			{60, httpapi.Queue{}}}, false},
		"classic, too early": {true, []answer{{2, sample("", 1)}, {13, sample("", 9)}}, false},
		"classic":            {true, []answer{{2, sample("", 1)}, {14, sample("", 1)}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			f := freshness{classic: test.classic, since: start}
			for _, a := range test.answers {
				f.add(a.queue, start.Add(time.Duration(a.second)*time.Second))
			}
			assert.Equal(t, test.certain, f.certain)
		})
	}
}

// A broker whose queue tells at its times, whose collector comes by at its times, and whose answers
// are half of one collection and half of the one before: whatever the intervals are, an answer that
// is called certain is younger than the time for settling.
func TestFreshnessIsCertain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const unbound = 10_000 // ms
		intervals := rapid.IntRange(1, 12_000)
		tick, collect, poll := intervals.Draw(t, "tick"), intervals.Draw(t, "collect"),
			rapid.IntRange(1, 3000).Draw(t, "poll")
		tickPhase, collectPhase := rapid.IntRange(0, tick).Draw(t, "tick phase"),
			rapid.IntRange(0, collect).Draw(t, "collect phase")
		last := func(interval, phase, at int) int { return (at+phase)/interval*interval - phase } // at most at
		collected := func(at int) int { return last(tick, tickPhase, last(collect, collectPhase, at)) }

		start := time.Now()
		f := freshness{since: start.Add(unbound * time.Millisecond)}
		for at := unbound; at < unbound+120_000; at += poll {
			counter := int64(collected(at)) // grows with each tick
			f.add(sample("a", counter), start.Add(time.Duration(at)*time.Millisecond))
			messagesOf := collected(at - collect) // the rest of the answer may be one collection behind
			if f.certain {
				if messagesOf < unbound+int(settling.Milliseconds()) {
					t.Fatalf("the statistics of %d ms are taken for certain", messagesOf)
				}
				return
			}
		}
	})
}
