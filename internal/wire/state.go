package wire

import (
	"cmp"
	"slices"
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

	// Since is where the age of the message counts from, Deadline when it expires; NotBefore is
	// until when it is to wait, where one delay was not enough.
	Since, Deadline, NotBefore time.Time

	// Due is when the wait ends for which it is sent. Not read back: it is over when it arrives.
	Due time.Time

	// Handled is the mark of a call in which the handler succeeded, and a middleware outside made a
	// failure of it.
	Handled string

	Reason     retry.Reason // why it died; empty before
	Error      string
	ErrorType  string
	Subscriber string // for Watermill's poison key only, not read back
	History    []retry.FailedCall

	// Replay names the run that has replayed it last; Edits are what was changed before replays.
	// Both are for tools to read and carried along here.
	Replay, Edits string

	// Parked is who has parked or unparked a dead letter, when and why. Read in a dead-letter queue
	// only; a replay does not carry it.
	Parked string

	// Canary is whom to tell what becomes of it. A dead letter does not carry it, a replay does.
	Canary string

	// Trace is the W3C traceparent of the last call that was traced; empty if there is none.
	Trace string

	// Unknown are keys of ours that this version does not know: an instance of a later one has
	// written them, and must find them again when the message has been through this one. At most
	// MaxUnknownBytes.
	Unknown map[string]string

	// Removed are the names of the message's own headers that left no room (reason too-large). Read
	// in a dead-letter queue only; whoever makes the copy writes them.
	Removed string

	// Tries are the immediate tries of the present attempt that have failed. They happen in one
	// process: not written.
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

// Known reports whether the arrival was recorded: the default exchange has an empty name, so the
// fields cannot tell.
func (a Arrival) Known() bool { return a.known }

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

// ForReplay is the state of a dead letter that is sent back to a queue, by a run: whoever consumes
// it there takes it for a replay.
func (s State) ForReplay(queue, run, canary string) State {
	s.Count, s.Delay, s.Queue, s.Replay, s.Canary = header.CountDead, "", queue, run, canary
	s.Since, s.Deadline, s.NotBefore, s.Parked = time.Time{}, time.Time{}, time.Time{}, ""
	s.bare = true // a queue whose consumer is not ours would take Watermill's keys for its own

	return s
}
