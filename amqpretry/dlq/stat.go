package dlq

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/internal/header"
)

// Stat counts dead letters.
type Stat struct {
	// Ready is how many messages the queue had to give when the browse began; Seen how many of them
	// were looked at. Messages that other consumers hold are in neither.
	Ready int `json:"ready"`
	Seen  int `json:"seen"`
	// Hidden is how many messages the broker holds back until their x-opt-delivery-time (RabbitMQ
	// 4.4 and later): no look sees them before. -1 where only the management API could tell.
	Hidden int `json:"hidden"`
	// Consumers is how many other consumers the queue had when the browse began.
	Consumers int `json:"consumers"`
	// Matched is how many of them the filter matched: all of what follows is about these.
	Matched int `json:"matched"`
	// Bytes of their bodies.
	Bytes int64 `json:"bytes"`
	// Oldest and Newest are the times of the first and the last of their last failures; Untimed is
	// how many tell none.
	Oldest  time.Time `json:"oldest,omitzero"`
	Newest  time.Time `json:"newest,omitzero"`
	Untimed int       `json:"untimed"`
	// UntimedLeftOut is how many OlderThan and NewerThan of the filter leave out only because they
	// tell no time.
	UntimedLeftOut int `json:"untimed_left_out,omitempty"`
	// Replayed is how many have been replayed before, Parked how many are parked; Unreadable is how
	// many have headers that cannot be read.
	Replayed   int `json:"replayed"`
	Parked     int `json:"parked,omitempty"`
	Unreadable int `json:"unreadable"`
	// By reason, topic, handler and type of error. A dead letter without it counts under "".
	ByReason    Counts `json:"by_reason"`
	ByTopic     Counts `json:"by_topic"`
	ByHandler   Counts `json:"by_handler"`
	ByErrorType Counts `json:"by_error_type"`
	// ByFingerprint counts their IDs, and Fingerprints tells what each of them stands for.
	ByFingerprint Counts                 `json:"by_fingerprint"`
	Fingerprints  map[string]Fingerprint `json:"fingerprints,omitempty"`
	// ByReplay counts those that have failed again, by the run that has replayed them last:
	// Report.Run. Others are not among them.
	ByReplay Counts `json:"by_replay"`
}

// Handled returns how many of the messages that a replay has sent have left its target at least:
// they are handled, or somebody else has taken them. failedAgain are dead letters again, pending
// may still be in the target or wait for a retry, and unread have come into the dead-letter queue
// since it was read.
func Handled(sent, failedAgain int, pending, unread int64) int {
	most := int64(sent)

	return max(0, sent-failedAgain-int(min(pending, most))-int(min(unread, most)))
}

// Counts are numbers by name. The sum of all is the number of dead letters that matched.
type Counts struct {
	// ByName has the number of messages for each name.
	ByName map[string]int `json:"by_name"`
	// Others is how many had further names, beyond the first maxNames different ones.
	Others int `json:"others"`
}

// maxNames is how many different names are counted by themselves, so that whoever makes up names
// cannot fill the memory.
const maxNames = 10_000

// Count is how many have a name.
type Count struct {
	// Name is the reason, topic, handler or type of error.
	Name string `json:"name"`
	// N is the number of its messages.
	N int `json:"n"`
}

// Sorted gives the names, the most frequent first and equally frequent ones by name. Others are not
// among them.
func (c Counts) Sorted() []Count {
	counts := make([]Count, 0, len(c.ByName))
	for name, n := range c.ByName {
		counts = append(counts, Count{name, n})
	}
	slices.SortFunc(counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.N, a.N), strings.Compare(a.Name, b.Name))
	})

	return counts
}

// MarshalJSON gives an object of names also where nothing was counted.
func (c Counts) MarshalJSON() ([]byte, error) {
	type plain Counts
	if c.ByName == nil {
		c.ByName = map[string]int{}
	}

	return json.Marshal(plain(c))
}

// add tells whether the name is new among those that are counted by themselves.
func (c *Counts) add(name string) (isNew bool) {
	_, known := c.ByName[name]
	if !known && len(c.ByName) >= maxNames {
		c.Others++
		return false
	}
	if c.ByName == nil {
		c.ByName = map[string]int{}
	}
	c.ByName[name]++

	return !known
}

// add counts a dead letter that matched.
func (s *Stat) add(l *DeadLetter) {
	s.Matched++
	s.Bytes += int64(len(l.Message.Body))
	if l.Replays > 0 {
		s.Replayed++
	}
	if l.IsParked() {
		s.Parked++
	}
	if l.Unreadable != "" {
		s.Unreadable++
	}

	switch at := l.LastFailure; {
	case at.IsZero():
		s.Untimed++
	default:
		if s.Oldest.IsZero() || at.Before(s.Oldest) {
			s.Oldest = at
		}
		if at.After(s.Newest) {
			s.Newest = at
		}
	}

	if run, _ := l.Message.Headers[header.Replay].(string); run != "" {
		s.ByReplay.add(run)
	}
	s.ByReason.add(string(l.Reason))
	s.ByTopic.add(l.Topic)
	s.ByHandler.add(l.Handler)
	s.ByErrorType.add(l.ErrorType)
	fingerprint := l.Fingerprint()
	if s.ByFingerprint.add(fingerprint.ID) {
		if s.Fingerprints == nil {
			s.Fingerprints = map[string]Fingerprint{}
		}
		s.Fingerprints[fingerprint.ID] = fingerprint
	}
}
