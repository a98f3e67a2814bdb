package dlqweb

import (
	"cmp"
	"slices"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/retry"
)

const (
	// pageSize is how many dead letters a page lists.
	pageSize = 50
	// mostGroups is how many fingerprints are kept apart; others are counted together.
	mostGroups = 500
	// mostSummary is how much of a text a list keeps.
	mostSummary = 300
)

// look is what one browse of a dead-letter queue has seen: numbers, groups and one page, however
// long the queue is.
type look struct {
	Began, Ended time.Time
	numbers
	Groups []*group
	Ages   ages
	// Others is how many belong to fingerprints beyond mostGroups.
	Others int
	Page   []summary
	// After is the position behind which the page begins; More tells whether it goes on, behind the
	// position Next.
	After, Next int
	More        bool

	byFingerprint map[string]*group
}

// numbers are those of dlq.Stat, by the same names, with fewer of what dead letters are counted by.
type numbers struct {
	Ready      int        `json:"ready"`
	Seen       int        `json:"seen"`
	Hidden     int        `json:"hidden"`
	Matched    int        `json:"matched"`
	Bytes      int64      `json:"bytes"`
	Oldest     time.Time  `json:"oldest,omitzero"`
	Newest     time.Time  `json:"newest,omitzero"`
	Untimed    int        `json:"untimed"`
	Replayed   int        `json:"replayed"`
	Unreadable int        `json:"unreadable"`
	ByReason   dlq.Counts `json:"by_reason"`
}

// mostReasons bounds what forged headers can take.
const mostReasons = 50

func (n *numbers) add(l *dlq.DeadLetter) {
	n.Matched++
	n.Bytes += int64(len(l.Message.Body))
	if l.Replays > 0 {
		n.Replayed++
	}
	if l.Unreadable != "" {
		n.Unreadable++
	}
	if l.LastFailure.IsZero() {
		n.Untimed++
	}
	n.Oldest, n.Newest = span(n.Oldest, n.Newest, l.LastFailure)

	if n.ByReason.ByName == nil {
		n.ByReason.ByName = map[string]int{}
	}
	reason := cut(string(l.Reason), mostSummary)
	if _, known := n.ByReason.ByName[reason]; !known && len(n.ByReason.ByName) == mostReasons {
		n.ByReason.Others++
		return
	}
	n.ByReason.ByName[reason]++
}

// span takes one more time into a span of time.
func span(oldest, newest, at time.Time) (time.Time, time.Time) {
	switch {
	case at.IsZero():
		return oldest, newest
	case oldest.IsZero():
		return at, at
	case at.Before(oldest):
		return at, newest
	case at.After(newest):
		return oldest, at
	default:
		return oldest, newest
	}
}

// group are the dead letters with one fingerprint.
type group struct {
	dlq.Fingerprint
	Messages int       `json:"messages"`
	Bytes    int64     `json:"bytes"`
	Oldest   time.Time `json:"oldest,omitzero"`
	Newest   time.Time `json:"newest,omitzero"`
	Replayed int       `json:"replayed"`
	// Reason is that of the oldest one.
	Reason retry.Reason `json:"reason"`
}

// summary is a dead letter in a list.
type summary struct {
	Position    int          `json:"position"`
	UUID        string       `json:"uuid"`
	Reason      retry.Reason `json:"reason"`
	Fingerprint string       `json:"fingerprint"`
	ErrorType   string       `json:"error_type"`
	Error       string       `json:"error,omitempty"`
	Handler     string       `json:"handler"`
	Topic       string       `json:"topic"`
	Calls       int          `json:"calls"`
	Replays     int          `json:"replays"`
	LastFailure time.Time    `json:"last_failure,omitzero"`
	Bytes       int          `json:"bytes"`
	Unreadable  string       `json:"unreadable,omitempty"`
	// Cut tells that the UUID is longer, so that only the position leads to the message.
	Cut bool `json:"-"`
}

// add takes a dead letter that matched.
func (k *look) add(l *dlq.DeadLetter) {
	k.numbers.add(l)
	k.Ages.add(l.LastFailure, k.Began)
	fingerprint := l.Fingerprint()
	k.group(fingerprint, l)
	switch {
	case l.Position <= k.After:
	case len(k.Page) == pageSize:
		k.More = true
	default:
		k.Page = append(k.Page, summary{
			Position: l.Position, UUID: cut(l.UUID, mostSummary), Reason: l.Reason, Fingerprint: fingerprint.ID,
			ErrorType: cut(l.ErrorType, mostSummary), Error: cut(l.Error, mostSummary),
			Handler: cut(l.Handler, mostSummary), Topic: cut(l.Topic, mostSummary),
			Calls: l.Calls, Replays: l.Replays, LastFailure: l.LastFailure, Bytes: len(l.Message.Body),
			Unreadable: cut(l.Unreadable, mostSummary), Cut: len(l.UUID) > mostSummary,
		})
		k.Next = l.Position
	}
}

func (k *look) group(fingerprint dlq.Fingerprint, l *dlq.DeadLetter) {
	if k.byFingerprint == nil {
		k.byFingerprint = map[string]*group{}
	}
	g := k.byFingerprint[fingerprint.ID]
	if g == nil {
		if len(k.Groups) == mostGroups {
			k.Others++
			return
		}
		fingerprint.ErrorType = cut(fingerprint.ErrorType, mostSummary)
		fingerprint.Handler = cut(fingerprint.Handler, mostSummary)
		g = &group{Fingerprint: fingerprint, Reason: l.Reason}
		k.byFingerprint[fingerprint.ID] = g
		k.Groups = append(k.Groups, g)
	}
	g.Messages++
	g.Bytes += int64(len(l.Message.Body))
	if l.Replays > 0 {
		g.Replayed++
	}
	g.Oldest, g.Newest = span(g.Oldest, g.Newest, l.LastFailure)
}

// end puts the largest group first.
func (k *look) end(now time.Time) {
	k.Ended = now
	k.byFingerprint = nil
	slices.SortFunc(k.Groups, func(a, b *group) int {
		return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(a.ID, b.ID))
	})
}

// ages counts dead letters by the time since their last failure.
type ages struct {
	ByBucket [len(ageBounds) + 1]int
	// Untimed do not tell it.
	Untimed int
}

// ageBounds end the buckets; the last bucket has no end.
var ageBounds = [...]struct {
	Most time.Duration
	Name string
}{
	{10 * time.Minute, "10 min"}, {time.Hour, "1 h"}, {6 * time.Hour, "6 h"}, {24 * time.Hour, "1 d"},
	{3 * 24 * time.Hour, "3 d"}, {7 * 24 * time.Hour, "7 d"}, {30 * 24 * time.Hour, "30 d"},
}

func (a *ages) add(at, now time.Time) {
	if at.IsZero() {
		a.Untimed++
		return
	}
	i := 0
	for i < len(ageBounds) && now.Sub(at) > ageBounds[i].Most {
		i++
	}
	a.ByBucket[i]++
}

// cut shortens a text to so many bytes, at a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && text[most]&0xc0 == 0x80 {
		most--
	}

	return text[:most] + "…"
}
