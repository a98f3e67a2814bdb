package snapshot

import (
	"cmp"
	"slices"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/retry"
)

const (
	// mostGroups is how many fingerprints are told; others are counted together.
	mostGroups = 500
	// mostReasons bounds what forged headers can take.
	mostReasons = 50
)

// Numbers are those of dlq.Stat, by the same names, with fewer of what dead letters are counted by.
type Numbers struct {
	Ready   int       `json:"ready"`
	Seen    int       `json:"seen"`
	Hidden  int       `json:"hidden"`
	Matched int       `json:"matched"`
	Bytes   int64     `json:"bytes"`
	Oldest  time.Time `json:"oldest,omitzero"`
	Newest  time.Time `json:"newest,omitzero"`
	Untimed int       `json:"untimed"`
	// UntimedLeftOut is how many match but for their missing time, while the filter asks for an
	// age.
	UntimedLeftOut int        `json:"untimed_left_out"`
	Replayed       int        `json:"replayed"`
	Parked         int        `json:"parked"`
	Unreadable     int        `json:"unreadable"`
	ByReason       dlq.Counts `json:"by_reason"`
}

// Group are the dead letters with one fingerprint.
type Group struct {
	dlq.Fingerprint
	Messages int       `json:"messages"`
	Bytes    int64     `json:"bytes"`
	Oldest   time.Time `json:"oldest,omitzero"`
	Newest   time.Time `json:"newest,omitzero"`
	Replayed int       `json:"replayed"`
	Parked   int       `json:"parked"`
	// Parking is the note of the last of these that somebody has parked.
	Parking *dlq.Parking `json:"parking,omitempty"`
	// Reason is that of the oldest one.
	Reason retry.Reason `json:"reason"`
}

// Ages counts dead letters by the time since their last failure.
type Ages struct {
	ByBucket [len(ageBounds) + 1]int
}

// ageBounds end the buckets; the last bucket has no end.
var ageBounds = [...]AgeBound{
	{10 * time.Minute, "10 min", "10m"}, {time.Hour, "1 h", "1h"}, {6 * time.Hour, "6 h", "6h"},
	{24 * time.Hour, "1 d", "1d"}, {3 * 24 * time.Hour, "3 d", "3d"}, {7 * 24 * time.Hour, "7 d", "7d"},
	{30 * 24 * time.Hour, "30 d", "30d"},
}

// AgeBound ends a bucket: its name, and how filters spell it.
type AgeBound struct {
	Most         time.Duration
	Name, Filter string
}

// AgeBounds are those of Ages.
func AgeBounds() []AgeBound { return ageBounds[:] }

// count counts a result.
func (s *Snapshot) count(r *Result) {
	r.Ready, r.Hidden, r.Seen = s.Read.Ready, s.Read.Hidden, s.n
	groups := make([]*Group, len(s.texts.fingerprints))
	reasons := map[retry.Reason]int{}
	for _, i := range r.rows {
		row := s.row(int(i))
		k, at := s.texts.kinds[row.kind], row.time()
		r.Matched++
		r.Bytes += int64(row.size)
		if row.replays > 0 {
			r.Replayed++
		}
		if row.unreadable {
			r.Unreadable++
		}
		if row.parked {
			r.Parked++
		}
		if at.IsZero() {
			r.Untimed++
		} else {
			r.Ages.ByBucket[bucket(s.Began.Sub(at))]++
			r.Oldest, r.Newest = span(r.Oldest, r.Newest, at)
		}
		if row.kind == 0 {
			r.Others++
			r.ByReason.Others++
			continue
		}
		reasons[k.reason]++
		g := groups[k.fingerprint]
		if g == nil {
			g = &Group{Fingerprint: s.texts.fingerprints[k.fingerprint], Reason: k.reason}
			g.ErrorType, g.Handler = cut(g.ErrorType, mostText), cut(g.Handler, mostText)
			groups[k.fingerprint] = g
		}
		g.Messages++
		g.Bytes += int64(row.size)
		if row.replays > 0 {
			g.Replayed++
		}
		if row.parked {
			g.Parked++
		}
		if row.parking > 0 {
			g.Parking = &s.texts.parkings[row.parking]
		}
		g.Oldest, g.Newest = span(g.Oldest, g.Newest, at)
	}
	r.ByReason.ByName = map[string]int{}
	for reason, n := range reasons {
		if len(r.ByReason.ByName) == mostReasons {
			r.ByReason.Others += n
			continue
		}
		r.ByReason.ByName[cut(string(reason), mostText)] += n
	}
	r.Groups = slices.DeleteFunc(groups, func(g *Group) bool { return g == nil })
	slices.SortFunc(r.Groups, func(a, b *Group) int {
		return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(a.ID, b.ID))
	})
	if len(r.Groups) > mostGroups {
		for _, g := range r.Groups[mostGroups:] {
			r.Others += g.Messages
		}
		r.Groups = slices.Clone(r.Groups[:mostGroups])
	}
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

func bucket(age time.Duration) int {
	i := 0
	for i < len(ageBounds) && age > ageBounds[i].Most {
		i++
	}

	return i
}

// Names are the different values that dead letters have.
type Names struct{ Reasons, Handlers, Topics, ErrorTypes []string }

// Names of what the snapshot has, in their alphabetical order.
func (s *Snapshot) Names() Names {
	var n Names
	for _, k := range s.texts.kinds[1:] {
		n.Reasons = append(n.Reasons, string(k.reason))
		n.Handlers = append(n.Handlers, k.handler)
		n.Topics = append(n.Topics, k.topic)
		n.ErrorTypes = append(n.ErrorTypes, k.errorType)
	}
	for _, all := range []*[]string{&n.Reasons, &n.Handlers, &n.Topics, &n.ErrorTypes} {
		slices.Sort(*all)
		*all = slices.Compact(*all)
	}

	return n
}
