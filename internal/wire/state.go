package wire

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/retry"
)

// State is what a message carries in our headers: where it is in its life and what happened to it.
//
// The zero State is that of a fresh message.
type State struct {
	Count    int    // failures so far, CountDead in the dead-letter queue
	Delay    string // the delay it is sent to wait, canonical; empty at the end
	Attempts int    // handler calls so far, over all lives of the message
	Replays  int    // how often it came back from the dead-letter queue

	Queue, Topic, Handler, Host string // where it failed

	Arrival Arrival // how it first arrived; zero before the first failure

	UUID string // the Watermill UUID, where the publisher gave none

	FirstFailure, LastFailure time.Time

	// Since is where the age of the message counts from, Deadline when it expires; NotBefore is until when it is to
	// wait, where one delay was not enough.
	Since, Deadline, NotBefore time.Time

	// Handled is the mark of a call in which the handler succeeded, and a middleware outside made a failure of it.
	Handled string

	Reason     retry.Reason // why it died; empty before
	Error      string
	ErrorType  string
	Subscriber string // for Watermill's poison key only, not read back
	History    []retry.FailedCall

	// Replay names the run that has replayed it last; Edits are what was changed before replays. Both are for tools to
	// read and carried along here.
	Replay, Edits string

	// Canary is whom to tell what becomes of it. A dead letter does not carry it, a replay does.
	Canary string

	// Trace is the W3C traceparent of the last call that was traced; empty if there is none.
	Trace string

	// Unknown are keys of ours that this version does not know: an instance of a later one has written them, and must
	// find them again when the message has been through this one. At most MaxUnknownBytes.
	Unknown map[string]string

	// Removed are the names of the message's own headers that left no room (reason too-large). Read in a dead-letter
	// queue only; whoever makes the copy writes them.
	Removed string

	// Tries are the immediate tries of the present attempt that have failed. They happen in one process: not written.
	Tries int

	bare bool // shrunk so far that Watermill's poison keys are given up
}

// Arrival is how a message first arrived, as far as a retry or the broker changes it.
type Arrival struct {
	Exchange, RoutingKey, Expiration, UserID, CC string
	// Opt are the x-opt-* headers, as JSON of at most MaxOptBytes.
	Opt string
	// Priority is the message's own where it waits with a lower one, which is where it is above
	// header.MaxWaitingPriority.
	Priority uint8

	known bool
}

// NewArrival records how a message first arrived.
func NewArrival(exchange, routingKey, expiration, userID, cc string) Arrival {
	return Arrival{Exchange: exchange, RoutingKey: routingKey, Expiration: expiration, UserID: userID, CC: cc,
		known: true}
}

// Known reports whether the arrival was recorded: the default exchange has an empty name, so the fields cannot tell.
func (a Arrival) Known() bool { return a.known }

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

// buried notes in the history why the message has died, so that its next life knows.
func (s State) buried() State {
	if !slices.Contains(retry.Reasons(), s.Reason) {
		return s
	}
	last := len(s.History) - 1
	if last < 0 { // no handler has seen it
		s.History = []retry.FailedCall{{Number: s.Attempts, At: s.LastFailure, Error: Text(s.Error, historyErrorBytes),
			Type: s.ErrorType, Reason: s.Reason}}
		return s
	}
	s.History = slices.Clone(s.History)
	s.History[last].Reason = cmp.Or(s.History[last].Reason, s.Reason)

	return s
}

// ForReplay is the state of a dead letter that is sent back to a queue, by a run: whoever consumes it there takes it
// for a replay.
func (s State) ForReplay(queue, run, canary string) State {
	s.Count, s.Delay, s.Queue, s.Replay, s.Canary = header.CountDead, "", queue, run, canary
	s.Since, s.Deadline, s.NotBefore = time.Time{}, time.Time{}, time.Time{}
	s.bare = true // a queue whose consumer is not ours would take Watermill's keys for its own

	return s
}

// ShrinkSteps is how many times Shrink can take something away.
const ShrinkSteps = 4

// Shrink returns the state without what is given up when the frame has no room, least valuable first: at step 1 the
// middle of the history and what a later version has added, at 2 the history, what was edited, whom to tell and the trace, at 3
// all but 256 bytes of the error text, at 4 the error, its type, the names that a log can tell as well, Watermill's
// poison keys, which repeat them, and the CC and x-opt-* headers. It always keeps what the return needs.
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

func parseTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}
	}

	return t.UTC()
}
