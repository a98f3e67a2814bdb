package wire

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/retry"
)

// Kind is what a message in a queue turns out to be.
type Kind int

// The kinds of a message that arrives in a queue.
const (
	Fresh          Kind = iota // none of our headers, another queue's, or nonsense
	Retry                      // returning from one of this queue's retry queues
	Replay                     // moved back from the dead-letter queue
	Clamped                    // this queue's, with a count that this policy does not know
	UnknownVersion             // fresh, but written by a version that we do not know: worth a log line
)

// Reading is what is known of the queue that a message arrives in.
type Reading struct {
	Queue      string
	MaxRetries int
	// Death is the queue in the broker's newest x-death entry, empty without one.
	Death string
	// IsRetryQueue reports whether name is this queue's retry queue for a delay, of whatever type.
	IsRetryQueue func(name, delay string) bool
}

// Carries tells whether headers are this queue's, which those of a fresh message are not.
func Carries(headers map[string]any, queue string) bool {
	text, _ := headers[header.Queue].(string)
	return text != "" && text == queue
}

// Read tells what arrived. It trusts a count only in this queue and with the broker's own word that
// the message waited in one of its retry queues: handlers pass metadata on, people move messages by
// hand, publishers forge.
func Read(headers map[string]any, r Reading) (State, Kind) {
	if !Carries(headers, r.Queue) {
		return State{}, Fresh
	}
	if v, _ := headers[header.Version].(string); v != header.FormatVersion {
		return State{}, UnknownVersion
	}

	count, exact := readCount(headers[header.Count])
	delay, _ := headers[header.Delay].(string)

	switch {
	case exact && count == header.CountDead:
		s := decode(headers).buried()
		s.Count, s.Replays = 0, min(s.Replays+1, math.MaxInt32)
		s.Delay, s.Reason = "", ""
		s.Arrival.Priority = 0                                                   // it has its own in its properties
		s.Since, s.Deadline, s.NotBefore = time.Time{}, time.Time{}, time.Time{} // it begins a new life

		return s, Replay

	case exact && count >= 1 && count <= r.MaxRetries:
		if r.Death == "" || !r.IsRetryQueue(r.Death, delay) {
			return State{}, Fresh
		}
		s := decode(headers)
		s.Count = count

		return s, Retry

	default: // also a 0, of a message that was postponed before its first failure
		s := decode(headers)
		s.Count = max(0, min(count, r.MaxRetries))
		if r.Death == "" || !r.IsRetryQueue(r.Death, delay) {
			// it has not waited, whatever it says
			s.Since, s.Deadline, s.NotBefore = time.Time{}, time.Time{}, time.Time{}
		}

		return s, Clamped
	}
}

func decode(headers map[string]any) State {
	text := func(key string) string {
		s, _ := headers[key].(string)
		return s
	}

	s := State{
		Delay:        text(header.Delay),
		Attempts:     number(text(header.Attempts)),
		Replays:      number(text(header.Replays)),
		Queue:        text(header.Queue),
		Topic:        text(header.Topic),
		Handler:      text(header.Handler),
		Host:         text(header.Host),
		UUID:         text(header.UUID),
		FirstFailure: ParseTime(text(header.FirstFailure)),
		LastFailure:  ParseTime(text(header.LastFailure)),
		Since:        ParseTime(text(header.Since)),
		Deadline:     ParseTime(text(header.Deadline)),
		NotBefore:    ParseTime(text(header.NotBefore)),
		Handled:      text(header.Handled),
		Reason:       retry.Reason(text(header.Reason)),
		Error:        text(header.Error),
		ErrorType:    text(header.ErrorType),
		History:      decodeHistory(text(header.History)),
		Replay:       text(header.Replay),
		Edits:        text(header.Edits),
		Canary:       text(header.Canary),
		Trace:        Traceparent(text(header.Trace)),
		Unknown:      unknown(headers),
	}

	if _, known := headers[header.Exchange].(string); known {
		s.Arrival = NewArrival(text(header.Exchange), text(header.RoutingKey), text(header.Expiration),
			text(header.UserID), text(header.CC))
		s.Arrival.Opt = text(header.Opt)
		s.Arrival.Priority = uint8(min(number(text(header.Priority)), math.MaxUint8)) //nolint:gosec // in its bounds
	}

	return s
}

// unknown gives the keys of ours that a later version has added, as far as there is room for them;
// nil if there are none.
func unknown(headers map[string]any) map[string]string {
	var keys []string // mostly none: so not all of them are sorted
	for key := range headers {
		if header.IsOwn(key) && !header.Known[key] && key != header.Retire {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)

	var found map[string]string
	room := MaxUnknownBytes
	for _, key := range keys {
		value, isText := headers[key].(string)
		size := len(key) + len(value) + 8 // as it is encoded, and a little more
		if !utf8.ValidString(key) || !isText || size > room {
			continue
		}
		if found == nil {
			found = map[string]string{}
		}
		found[key] = strings.ToValidUTF8(value, "?")
		room -= size
	}

	return found
}

// number reads a counter of ours; nonsense is zero. The bound keeps forged values from overflowing
// when they are raised.
func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0
	}

	return min(n, math.MaxInt32-1)
}

// readCount reads a count of any AMQP type. Only the strings that we write ourselves are exact.
func readCount(v any) (count int, exact bool) {
	switch n := v.(type) {
	case string:
		i, err := strconv.Atoi(n)
		if errors.Is(err, strconv.ErrRange) {
			return i, false // the nearest there is
		}
		if err != nil {
			return 0, false
		}

		return i, strconv.Itoa(i) == n
	default:
		i, _ := header.Integer(v)
		return int(max(math.MinInt32, min(i, math.MaxInt32))), false
	}
}

// Strip removes what must not be republished and, for a replay, Watermill's poison keys. It returns
// a new table, with room for as many more as a state has.
func Strip(headers map[string]any, replay bool) map[string]any {
	out := make(map[string]any, len(headers)+usualFields)
	for key, value := range headers {
		if header.IsOwn(key) || header.IsBroker(key) || replay && header.IsPoison(key) {
			continue
		}
		out[key] = value
	}

	return out
}

// ReadDead tells what a message in the dead-letter queue of a main queue carries. It is false for
// one that carries nothing of ours: the broker itself has put it there at its first attempt, or a
// person. Its Count is CountDead if we have put it there, else what it was when the broker did.
func ReadDead(headers map[string]any, queue string) (State, bool) {
	count, exact := readCount(headers[header.Count])
	dead := exact && count == header.CountDead
	if v, _ := headers[header.Version].(string); v != header.FormatVersion || !dead && headers[header.Queue] != queue {
		return State{}, false
	}
	s := decode(headers)
	s.Count, s.Canary = count, ""
	s.Removed, _ = headers[header.Removed].(string)
	s.Parked, _ = headers[header.Parked].(string)

	// Whoever can publish can write these: what is shown keeps the bounds that we keep.
	if !slices.Contains(retry.Reasons(), s.Reason) {
		s.Reason = ""
	}
	s.Error, s.ErrorType = Text(s.Error, MaxErrorBytes), Text(s.ErrorType, MaxErrorTypeBytes)
	from := &s.Arrival
	for _, name := range []*string{
		&s.Queue, &s.Topic, &s.Handler, &s.Host, &s.UUID, &s.Replay, &s.Handled, &from.Exchange, &from.RoutingKey,
		&from.Expiration, &from.UserID,
	} {
		*name = Text(*name, MaxNameBytes)
	}
	if len(from.Opt) > MaxOptBytes {
		from.Opt = ""
	}
	if len(s.Parked) > MaxParkedBytes || !utf8.ValidString(s.Parked) {
		s.Parked = ""
	}
	from.CC, s.Removed = Text(from.CC, MaxCCBytes), Text(s.Removed, MaxRemovedBytes)

	return s, true
}

// BrokerReason is the reason for which the broker itself has dead-lettered a message; empty for
// what is none.
func BrokerReason(death string) retry.Reason {
	switch death {
	case "rejected":
		return retry.ReasonRejected
	case "delivery_limit":
		return retry.ReasonDeliveryLimit
	case "maxlen":
		return retry.ReasonMaxLen
	case "expired":
		return retry.ReasonExpired
	}

	return ""
}

// ParseTime reads a time of a header. It is zero for what is none.
func ParseTime(s string) time.Time {
	if s == "" { // most times of most messages: an error takes three allocations
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}
	}

	return t.UTC()
}
