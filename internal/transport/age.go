package transport

import (
	"strconv"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// withAge completes the state of a message that arrived just now with where its age counts from, and with its deadline: by its
// own expiration, and by the policy's maximum age of now, whatever that was when it failed before.
func withAge(s wire.State, d *amqp091.Delivery, kind wire.Kind, maxAge time.Duration, now time.Time) wire.State {
	expiration := ownExpiration(s, d)
	if s.Since.IsZero() {
		s.Since = began(d, kind, expiration, now)
	}
	// From the future they are forged, or of a clock that is wrong: they would lift every bound.
	s.Since, s.LastFailure = earlier(s.Since, now), earlier(s.LastFailure, now)

	s.Deadline = time.Time{}
	for _, limit := range []time.Duration{expiration, maxAge} {
		if deadline := s.Since.Add(limit); limit > 0 && (s.Deadline.IsZero() || deadline.Before(s.Deadline)) {
			s.Deadline = deadline
		}
	}

	return s
}

func earlier(a, b time.Time) time.Time {
	if a.After(b) {
		return b
	}

	return a
}

// ownExpiration is the expiration that the publisher gave, 0 if none. It ends with the first life of the message: who
// replays a dead letter wants it to be handled.
func ownExpiration(s wire.State, d *amqp091.Delivery) time.Duration {
	text := d.Expiration
	if s.Arrival.Known() {
		text = s.Arrival.Expiration
	}

	ms, err := strconv.ParseUint(text, 10, 64)
	if err != nil || s.Replays > 0 {
		return 0
	}

	// A queue may have taken 0 as well: for a message that is to be handled at once or never.
	return time.Duration(max(1, min(ms, uint64(config.MaxDelay/time.Millisecond)))) * time.Millisecond
}

// began tells where the age of a message counts from that arrives for the first time in this life.
//
// The timestamp of AMQP has whole seconds, so the message may be almost a second younger. And it comes from the clock of
// the publisher, or from a mistake (milliseconds, local time): one from the future is not believed, nor is one by which
// the broker would have handed out an expired message.
func began(d *amqp091.Delivery, kind wire.Kind, expiration time.Duration, now time.Time) time.Time {
	if kind == wire.Replay || d.Timestamp.Unix() <= 0 {
		return now
	}

	since := d.Timestamp.Add(time.Second)
	if since.After(now) || expiration > 0 && !since.Add(expiration).After(now) {
		return now
	}

	return since
}
