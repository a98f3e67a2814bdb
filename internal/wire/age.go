package wire

import (
	"strconv"
	"time"
)

// Age is what a message's age and deadline are made of, as it arrives.
type Age struct {
	// Expiration is the text of the property, Timestamp its time; zero without one.
	Expiration string
	Timestamp  time.Time
	Kind       Kind
	// MaxAge is the policy's; 0 for none.
	MaxAge time.Duration
	// Longest is the bound of an expiration: longer ones are this.
	Longest time.Duration
	Now     time.Time
}

// SetAge completes the state of a message that arrived just now with where its age counts from, and
// with its deadline: by its own expiration, and by the policy's maximum age of now, whatever that
// was when it failed before.
func (s *State) SetAge(a Age) {
	expiration := a.ownExpiration(s)
	if s.Since.IsZero() {
		s.Since = a.began(expiration)
	}
	// From the future they are forged, or of a clock that is wrong: they would lift every bound.
	s.Since, s.LastFailure = earlier(s.Since, a.Now), earlier(s.LastFailure, a.Now)

	s.Deadline = time.Time{}
	for _, limit := range []time.Duration{expiration, a.MaxAge} {
		if deadline := s.Since.Add(limit); limit > 0 && (s.Deadline.IsZero() || deadline.Before(s.Deadline)) {
			s.Deadline = deadline
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.After(b) {
		return b
	}

	return a
}

// ownExpiration is the expiration that the publisher gave, 0 if none. It ends with the first life
// of the message: who replays a dead letter wants it to be handled.
func (a Age) ownExpiration(s *State) time.Duration {
	text := a.Expiration
	if s.Arrival.Known() {
		text = s.Arrival.Expiration
	}

	if text == "" || s.Replays > 0 {
		return 0
	}
	ms, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}

	// A queue may have taken 0 as well: for a message that is to be handled at once or never.
	return time.Duration(max(1, min(ms, uint64(a.Longest/time.Millisecond)))) * time.Millisecond
}

// began tells where the age of a message counts from that arrives for the first time in this life.
//
// The timestamp of AMQP has whole seconds, so the message may be almost a second younger. And it
// comes from the clock of the publisher, or from a mistake (milliseconds, local time): one from the
// future is not believed, nor is one by which the broker would have handed out an expired message.
func (a Age) began(expiration time.Duration) time.Time {
	if a.Kind == Replay || a.Timestamp.Unix() <= 0 {
		return a.Now
	}

	since := a.Timestamp.Add(time.Second)
	if since.After(a.Now) || expiration > 0 && !since.Add(expiration).After(a.Now) {
		return a.Now
	}

	return since
}
