package wire

import (
	"cmp"
	"strconv"
	"time"

	"github.com/amqpretry/watermill-retry/internal/header"
)

// Field is a header of ours.
type Field struct{ Key, Value string }

const (
	// MostFields is how many a state has at most, without what a later version has added.
	MostFields = 36
	// usualFields is how many it has mostly, with some to spare.
	usualFields = 24
)

// Headers spells the state. id is new for every publish.
func (s State) Headers(id string) map[string]string {
	h := map[string]string{}
	for _, field := range s.Fields(nil, id) {
		h[field.Key] = field.Value
	}

	return h
}

// Fields appends the headers of the state.
func (s *State) Fields(to []Field, id string) []Field {
	set := func(key, value string, limit int) {
		if value != "" {
			to = append(to, Field{key, Text(value, limit)})
		}
	}
	to = append(to, Field{header.Version, header.FormatVersion}, Field{header.ID, id},
		Field{header.Count, strconv.Itoa(s.Count)}, Field{header.Attempts, strconv.Itoa(s.Attempts)},
		Field{header.Queue, s.Queue})
	for key, value := range s.Unknown {
		to = append(to, Field{key, value})
	}

	if s.Count != header.CountDead {
		set(header.Delay, s.Delay, MaxNameBytes)
		set(header.Due, FormatTime(s.Due), MaxNameBytes)
	}
	if s.Replays > 0 {
		to = append(to, Field{header.Replays, strconv.Itoa(s.Replays)})
	}

	set(header.Topic, s.Topic, MaxNameBytes)
	set(header.Handler, s.Handler, MaxNameBytes)
	set(header.Host, s.Host, MaxNameBytes)
	set(header.UUID, s.UUID, MaxNameBytes)

	if s.Arrival.known {
		to = append(to, Field{header.Exchange, Text(s.Arrival.Exchange, MaxNameBytes)},
			Field{header.RoutingKey, Text(s.Arrival.RoutingKey, MaxNameBytes)})
		set(header.Expiration, s.Arrival.Expiration, MaxNameBytes)
		set(header.UserID, s.Arrival.UserID, MaxNameBytes)
		set(header.CC, s.Arrival.CC, MaxCCBytes)
		set(header.Opt, s.Arrival.Opt, MaxOptBytes)
		if s.Arrival.Priority > header.MaxWaitingPriority {
			to = append(to, Field{header.Priority, strconv.Itoa(int(s.Arrival.Priority))})
		}
	}

	set(header.FirstFailure, FormatTime(s.FirstFailure), MaxNameBytes)
	set(header.LastFailure, FormatTime(s.LastFailure), MaxNameBytes)
	set(header.Since, FormatTime(s.Since), MaxNameBytes)
	set(header.Deadline, FormatTime(s.Deadline), MaxNameBytes)
	set(header.NotBefore, FormatTime(s.NotBefore), MaxNameBytes)
	set(header.Handled, s.Handled, MaxNameBytes)
	set(header.Reason, string(s.Reason), MaxNameBytes)
	set(header.Error, s.Error, MaxErrorBytes)
	set(header.ErrorType, s.ErrorType, MaxErrorTypeBytes)
	set(header.Replay, s.Replay, MaxNameBytes)
	set(header.Edits, s.Edits, MaxEditsBytes)
	set(header.Parked, s.Parked, MaxParkedBytes)
	set(header.Canary, s.Canary, MaxCanaryBytes)
	set(header.Trace, Traceparent(s.Trace), traceparentBytes)
	set(header.History, encodeHistory(s.History), MaxHistoryBytes)

	if s.Count == header.CountDead && !s.bare {
		to = append(to,
			Field{header.PoisonReason, Text(cmp.Or(s.Error, string(s.Reason)), MaxErrorBytes)},
			Field{header.PoisonTopic, Text(s.Topic, MaxNameBytes)},
			Field{header.PoisonHandler, Text(s.Handler, MaxNameBytes)},
			Field{header.PoisonSubscriber, Text(s.Subscriber, MaxNameBytes)})
	}

	return to
}

// ShrinkSteps is how many times Shrink can take something away.
const ShrinkSteps = 4

// Shrink returns the state without what is given up when the frame has no room, least valuable
// first: at step 1 the middle of the history and what a later version has added, at 2 the history,
// what was edited, whom to tell and the trace, at 3 all but 256 bytes of the error text, at 4 the
// error, its type, the names that a log can tell as well, Watermill's poison keys, which repeat
// them, who has parked it, and the CC and x-opt-* headers. It always keeps what the return needs.
func (s State) Shrink(step int) State {
	if step >= 1 {
		s.History, s.Unknown = trim(s.History, 1), nil
	}
	if step >= 2 {
		s.History, s.Edits, s.Canary, s.Trace = nil, "", "", ""
	}
	if step >= 3 {
		s.Error = Text(s.Error, 256)
	}
	if step >= 4 {
		s.Error, s.ErrorType, s.Topic, s.Handler, s.Host, s.Subscriber = "", "", "", "", "", ""
		s.Parked, s.Arrival.CC, s.Arrival.Opt, s.bare = "", "", "", true
	}

	return s
}

const timeLayout = "2006-01-02T15:04:05.000Z"

// FormatTime spells a time of a header: RFC 3339 in UTC, with milliseconds. The zero time is empty.
func FormatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}

	return string(appendTime(make([]byte, 0, len(timeLayout)), t))
}

func appendTime(to []byte, t time.Time) []byte {
	if t.IsZero() {
		return to
	}

	return t.UTC().AppendFormat(to, timeLayout)
}
