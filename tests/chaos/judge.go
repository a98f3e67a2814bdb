package chaos

import (
	"fmt"
	"slices"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/testkit/fate"
	"github.com/amqpretry/watermill-retry/retry"
)

// Sent is a message as it was published.
type Sent struct {
	Topic     string
	ID        string
	Message   amqp091.Publishing
	Published time.Time // for the first time
	Times     int       // more than once where the broker did not confirm it before the connection was lost
	Confirmed time.Time // by the broker; only then it may not be lost
}

// Letter is a dead letter.
type Letter struct {
	Topic   string
	Message amqp091.Delivery
}

// Fault is something that was done to the system.
type Fault struct {
	Name       string
	Of         string // what it happened to: process, connection or broker
	Start, End time.Time
	// Deleted is the queue that was deleted, if any: what lay in it, or was being confirmed into
	// it, is gone.
	Deleted string
	// Harmless faults cannot be the cause of a duplicate: no delivery or confirmation is lost.
	Harmless bool
}

// Ledger is everything that is known of a run: what processes wrote down that were killed
// meanwhile, and what was done to them. It allows a duplicate or a loss only where a fault of that
// time explains it.
type Ledger struct {
	Sent    []*Sent
	Records []Record // in the order of their times
	Letters []Letter
	Faults  []Fault
	Left    map[string]int // messages that still were in the queues when all had been quiet for a time
	Longest time.Duration  // wait that handlers asked for, see [Asked]
}

// Count of what became of the messages of one topic.
type Count struct {
	Sent, Processed, DeadLettered, Dropped int
	// Removed lay in a queue that was deleted.
	Removed int
	// Lost are gone without a reason. Due came back from a classic retry queue, or were about to,
	// when the broker died.
	Lost, Due int
	// Retries that the broker gave back.
	Retries int
	// Again are calls beyond the one that each attempt has, and TwiceDead the dead letters beyond
	// one for each message: duplicates that the loss of a connection or of a process explains.
	Again, TwiceDead int
}

// Verdict of a run.
type Verdict struct {
	Counts map[string]*Count // by topic
	// Late is by how much retries came after the end of their delay, by topic.
	Late map[string][]time.Duration
	// Wrong is what must not be. Empty: the promises were kept.
	Wrong []string
}

// life is what happened to one message.
type life struct {
	*Sent
	calls    []Record
	returned int
	dropped  int
	failed   []Record // decisions
	letters  []Letter
}

// isRetried tells of a failure after which the message comes back.
func (r Record) isRetried() bool { return r.Delay > 0 || r.ByBroker }

// judge holds a ledger against the promises.
type judge struct {
	Ledger
	Verdict
	lives     map[string]*life
	incidents []incident // what can cause a duplicate, by its beginning
}

type incident struct{ start, end time.Time }

// Judge holds the ledger against the promises.
func (l Ledger) Judge() Verdict {
	j := judge{Ledger: l, lives: map[string]*life{}}
	j.Counts, j.Late = map[string]*Count{}, map[string][]time.Duration{}
	j.gather()
	for _, s := range l.Sent {
		j.judge(j.lives[s.ID])
	}
	for queue, n := range l.Left {
		if n > 0 {
			j.wrong("%d messages are left in queue %s", n, queue)
		}
	}

	return j.Verdict
}

func (j *judge) wrong(format string, args ...any) {
	j.Wrong = append(j.Wrong, fmt.Sprintf(format, args...))
}

func (j *judge) gather() {
	for _, s := range j.Sent {
		j.lives[s.ID] = &life{Sent: s}
		if j.Counts[s.Topic] == nil {
			j.Counts[s.Topic] = &Count{}
		}
	}
	for _, f := range j.Faults {
		if !f.Harmless {
			j.incidents = append(j.incidents, incident{f.Start, f.End})
		}
	}
	for _, r := range j.Records {
		if r.Kind == Kind(retry.EventDisconnected) {
			j.incidents = append(j.incidents, incident{r.At, r.At})
		}
		if r.ID == "" {
			continue
		}
		l := j.lives[r.ID]
		if l == nil {
			j.wrong("%s of %q, which was not sent", r.Kind, r.ID)
			continue
		}
		switch r.Kind {
		case Called:
			l.calls = append(l.calls, r)
		case Returned:
			l.returned++
		case Kind(retry.EventDropped):
			l.dropped++
		case Kind(retry.EventFailed), Kind(retry.EventUnhandled):
			l.failed = append(l.failed, r)
		}
	}
	slices.SortFunc(j.incidents, func(a, b incident) int { return a.start.Compare(b.start) })

	for _, letter := range j.Letters {
		id := text(letter.Message, uuidKey)
		if l := j.lives[id]; l != nil {
			l.letters = append(l.letters, letter)
		} else {
			j.wrong("a dead letter in %s that was not sent: %q", letter.Topic, id)
		}
	}
}

func (j *judge) judge(l *life) {
	count := j.Counts[l.Topic]
	count.Sent++
	j.ends(l, count)
	j.calls(l, count)
	j.delays(l)
	if len(l.letters) > 1 {
		count.TwiceDead += len(l.letters) - 1
		if !j.explained(l, time.Time{}) {
			j.wrong("%s has %d dead letters, and nothing that explains it", l.ID, len(l.letters))
		}
	}
	for _, letter := range l.letters {
		for _, problem := range inspect(l.Sent, letter, j.returned(l, Now())) {
			j.wrong("dead letter %s: %s\n%s", l.ID, problem, j.story(l))
		}
		if fewest, _ := attempts(); isExhausted(letter) && !slices.ContainsFunc(l.calls, func(c Record) bool {
			return c.Attempt >= fewest
		}) {
			j.wrong("dead letter %s: exhausted, and its last attempt was not made\n%s", l.ID, j.story(l))
		}
	}
}

// ends tells how a message ended, which must be as its fate says.
func (j *judge) ends(l *life, count *Count) {
	f := fate.Of(l.ID)
	switch {
	case l.returned > 0:
		count.Processed++
		if !f.Succeeds() {
			j.wrong("%s was processed", l.ID)
		}
	case len(l.letters) > 0:
		count.DeadLettered++
	case l.dropped > 0:
		count.Dropped++
		if f != fate.Dropped {
			j.wrong("%s was dropped", l.ID)
		}
	case l.Confirmed.IsZero(): // it never arrived, and nobody was told that it had
		count.Sent--
	case j.removed(l):
		count.Removed++
	default:
		if j.due(l) {
			count.Due++
			return
		}
		count.Lost++
		j.wrong("%s is lost\n%s", l.ID, j.story(l))
	}
}

// removed tells whether a message lay in a queue that was deleted: the last that is known of it is
// that it was on its way there.
func (j *judge) removed(l *life) bool {
	if len(l.failed) == 0 {
		return false
	}
	last := l.failed[len(l.failed)-1]
	for _, f := range j.Faults {
		if f.Deleted != "" && slices.Contains(targets(l.Topic, last), f.Deleted) && !last.At.After(f.End) &&
			!lastCall(l).After(last.At) {
			return true
		}
	}

	return false
}

// due tells whether a message can have been lost on its return from a classic retry queue, which
// does not wait until the main queue has stored what it gives back.
func (j *judge) due(l *life) bool {
	if !find(l.Topic).Lossy {
		return false
	}
	for _, f := range l.failed {
		if f.Delay > 0 && j.incident(f.At, f.At.Add(f.Wait+time.Minute)) {
			return true
		}
	}

	return false
}

func lastCall(l *life) time.Time {
	if len(l.calls) == 0 {
		return time.Time{}
	}

	return l.calls[len(l.calls)-1].At
}

// calls holds the calls of the handler against the attempts that the policies allow.
func (j *judge) calls(l *life, count *Count) {
	f := fate.Of(l.ID)
	fewest, most := attempts()
	if f == fate.Undecodable && len(l.calls) > 0 {
		j.wrong("%s: a handler saw it, and it cannot be decoded", l.ID)
	}
	want := digest(l.Message)
	seen := map[int]int{}
	for _, c := range l.calls {
		if c.Topic != l.Topic {
			j.wrong("%s was sent to %s, and %s was called with it", l.ID, l.Topic, c.Topic)
		}
		if c.Digest != want {
			j.wrong("%s: the handler did not get what was sent", l.ID)
		}
		if c.Attempt < 1 || c.Attempt > most {
			j.wrong("%s: attempt %d, of %d at the most", l.ID, c.Attempt, most)
		}
		if c.Attempt > 1 && seen[c.Attempt] == 0 {
			count.Retries++
		}
		seen[c.Attempt]++
		allowed := 1
		if f == fate.Postponed && c.Attempt == 1 {
			allowed = 2
		}
		// To the version with fewer retries it is the last attempt once more, where the other one
		// had a retry left.
		if c.Attempt == fewest && slices.ContainsFunc(l.failed, func(f Record) bool {
			return f.Attempt == fewest && f.isRetried() && f.At.Before(c.At)
		}) {
			allowed++
		}
		if seen[c.Attempt] > allowed {
			count.Again++
			if !j.explained(l, c.At) {
				j.wrong("%s: attempt %d at %s was not the first, and nothing explains it\n%s", l.ID, c.Attempt,
					c.At.Format(clock), j.story(l))
			}
		}
	}
	for n := range seen {
		if n > 1 && seen[n-1] == 0 && !j.explained(l, time.Time{}) && !j.returned(l, Now()) {
			j.wrong("%s: attempt %d without attempt %d", l.ID, n, n-1)
		}
	}
}

// delays: whoever comes back has waited, for as long as its handler asked. The broker counts in
// milliseconds.
func (j *judge) delays(l *life) {
	j.asked(l)
	earliest := map[int]time.Time{}
	for _, f := range l.failed {
		if !f.isRetried() || fate.Of(l.ID) == fate.Postponed {
			continue
		}
		next, at := f.Attempt+1, f.At.Add(f.Wait-2*time.Millisecond)
		if first, ok := earliest[next]; !ok || at.Before(first) {
			earliest[next] = at
		}
	}
	back := map[int]bool{}
	for _, c := range l.calls {
		at, ok := earliest[c.Attempt]
		if ok && c.At.Before(at) && !j.returned(l, c.At) {
			j.wrong("%s: attempt %d came %s too early\n%s", l.ID, c.Attempt, at.Sub(c.At), j.story(l))
		}
		if ok && !back[c.Attempt] {
			back[c.Attempt] = true
			j.Late[l.Topic] = append(j.Late[l.Topic], max(0, c.At.Sub(at)))
		}
	}
}

// asked holds the waits of a message with exact delays against what its handler asked for.
func (j *judge) asked(l *life) {
	asks := []fate.Fate{fate.Once, fate.Twice, fate.Never}
	if len(find(l.Topic).Exact) < 2 || !slices.Contains(asks, fate.Of(l.ID)) {
		return // or nobody knows which version it was
	}
	for _, f := range l.failed {
		asked := Asked(l.Topic, VersionA, l.ID, f.Attempt, j.Longest)
		if f.Kind != Kind(retry.EventFailed) || f.Delay == 0 || asked == 0 {
			continue
		}
		if want := ladder.Config.RoundUp(asked); f.Delay != want {
			j.wrong("%s: attempt %d was to wait for %s, and waits for %s", l.ID, f.Attempt, want, f.Delay)
		}
	}
}

// explained tells whether a message can be there twice at a time, or at any: it was published
// twice, or something happened since it was sent by which a delivery or a confirmation can have
// been lost.
func (j *judge) explained(l *life, at time.Time) bool {
	if l.Times > 1 {
		return true
	}
	if at.IsZero() {
		at = Now()
	}
	from := l.Confirmed
	if len(l.calls) > 0 {
		from = l.calls[0].At
	}

	return j.incident(from, at)
}

// returned tells whether the broker may have counted an attempt by that time that nobody has made:
// a consumer died of something else while it had the message, or closed. Nothing has waited then.
// For topics where it counts returns only.
func (j *judge) returned(l *life, at time.Time) bool {
	return find(l.Topic).Strategy.CountsReturns() && (l.Times > 1 || j.incident(l.Published, at))
}

func (j *judge) incident(from, to time.Time) bool {
	for _, i := range j.incidents {
		if i.start.After(to) {
			return false
		}
		if !i.end.Before(from) {
			return true
		}
	}

	return false
}

const clock = "15:04:05.000"

// story is what the ledger has about a message, and the faults of its time.
func (j *judge) story(l *life) string {
	var story []Record
	for _, r := range j.Records {
		if r.ID == l.ID {
			story = append(story, r)
		}
	}
	from, to := l.Confirmed, l.Confirmed
	if len(story) > 0 {
		from, to = story[0].At, story[len(story)-1].At
	}
	for _, f := range j.Faults {
		if f.End.After(from.Add(-time.Second)) && f.Start.Before(to.Add(time.Second)) {
			story = append(story, Record{At: f.Start, Kind: Kind(f.Name)},
				Record{At: f.End, Kind: "end of " + Kind(f.Name)})
		}
	}
	slices.SortStableFunc(story, func(a, b Record) int { return a.At.Compare(b.At) })

	s := fmt.Sprintf("\t%s sent to %s, %d times\n", l.Confirmed.Format(clock), l.Topic, l.Times)
	for _, r := range story {
		s += fmt.Sprintf("\t%s %s %s attempt %d %s %s %s\n", r.At.Format(clock), r.Process, r.Kind, r.Attempt, r.Detail,
			r.Reason, r.waiting())
	}

	return s
}
