package wire

import (
	"maps"
	"strconv"
	"time"

	"github.com/amqpretry/watermill-retry/internal/header"
)

// Headers spells the state. id is new for every publish.
func (s State) Headers(id string) map[string]string {
	h := map[string]string{
		header.Version:  header.FormatVersion,
		header.ID:       id,
		header.Count:    strconv.Itoa(s.Count),
		header.Attempts: strconv.Itoa(s.Attempts),
		header.Queue:    s.Queue,
	}
	maps.Copy(h, s.Unknown)

	set := func(key, value string, limit int) {
		if value != "" {
			h[key] = Text(value, limit)
		}
	}

	if s.Count != header.CountDead {
		set(header.Delay, s.Delay, MaxNameBytes)
	}
	if s.Replays > 0 {
		h[header.Replays] = strconv.Itoa(s.Replays)
	}

	set(header.Topic, s.Topic, MaxNameBytes)
	set(header.Handler, s.Handler, MaxNameBytes)
	set(header.Host, s.Host, MaxNameBytes)
	set(header.UUID, s.UUID, MaxNameBytes)

	if s.Arrival.known {
		h[header.Exchange] = Text(s.Arrival.Exchange, MaxNameBytes)
		h[header.RoutingKey] = Text(s.Arrival.RoutingKey, MaxNameBytes)
		set(header.Expiration, s.Arrival.Expiration, MaxNameBytes)
		set(header.UserID, s.Arrival.UserID, MaxNameBytes)
		set(header.CC, s.Arrival.CC, MaxCCBytes)
		set(header.Opt, s.Arrival.Opt, MaxOptBytes)
		if s.Arrival.Priority > header.MaxWaitingPriority {
			h[header.Priority] = strconv.Itoa(int(s.Arrival.Priority))
		}
	}

	set(header.FirstFailure, formatTime(s.FirstFailure), MaxNameBytes)
	set(header.LastFailure, formatTime(s.LastFailure), MaxNameBytes)
	set(header.Since, formatTime(s.Since), MaxNameBytes)
	set(header.Deadline, formatTime(s.Deadline), MaxNameBytes)
	set(header.NotBefore, formatTime(s.NotBefore), MaxNameBytes)
	set(header.Handled, s.Handled, MaxNameBytes)
	set(header.Reason, string(s.Reason), MaxNameBytes)
	set(header.Error, s.Error, MaxErrorBytes)
	set(header.ErrorType, s.ErrorType, MaxErrorTypeBytes)
	set(header.Replay, s.Replay, MaxNameBytes)
	set(header.Edits, s.Edits, MaxEditsBytes)
	set(header.Canary, s.Canary, MaxCanaryBytes)
	set(header.Trace, Traceparent(s.Trace), traceparentBytes)
	set(header.History, encodeHistory(s.History), MaxHistoryBytes)

	if s.Count == header.CountDead && !s.bare {
		maps.Copy(h, s.poison())
	}

	return h
}

func (s State) poison() map[string]string {
	reason := s.Error
	if reason == "" {
		reason = string(s.Reason)
	}

	return map[string]string{
		header.PoisonReason:     Text(reason, MaxErrorBytes),
		header.PoisonTopic:      Text(s.Topic, MaxNameBytes),
		header.PoisonHandler:    Text(s.Handler, MaxNameBytes),
		header.PoisonSubscriber: Text(s.Subscriber, MaxNameBytes),
	}
}

// ShrinkSteps is how many times Shrink can take something away.
const ShrinkSteps = 4

// Shrink returns the state without what is given up when the frame has no room, least valuable
// first: at step 1 the middle of the history and what a later version has added, at 2 the history,
// what was edited, whom to tell and the trace, at 3 all but 256 bytes of the error text, at 4 the
// error, its type, the names that a log can tell as well, Watermill's poison keys, which repeat
// them, and the CC and x-opt-* headers. It always keeps what the return needs.
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
		s.Arrival.CC, s.Arrival.Opt, s.bare = "", "", true
	}

	return s
}

const timeLayout = "2006-01-02T15:04:05.000Z"

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}

	return t.UTC().Format(timeLayout)
}
