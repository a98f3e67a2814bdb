// Package fate decides how the messages of a test end. The id of a message begins with its fate: it
// tells what a handler does with the message and how the message must end. A duplicate has the same
// fate.
package fate

import (
	"errors"
	"hash/fnv"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/retry"
)

// Fate is what a handler does with a message.
type Fate string

// The fates.
const (
	Succeeds  Fate = "ok"
	Slow      Fate = "slow"      // succeeds after up to 200 ms
	Once      Fate = "once"      // fails once
	Twice     Fate = "twice"     // fails twice
	Postponed Fate = "postponed" // is postponed once
	Never     Fate = "never"     // fails until its retries are used up
	Panics    Fate = "panic"     // panics each time
	Permanent Fate = "permanent" // fails for good
	Dropped   Fate = "dropped"   // is not wanted any more
	// Undecodable is refused by the marshaler: no handler sees it.
	Undecodable Fate = "undecodable"
)

// Of reads a message's fate from its id.
func Of(id string) Fate {
	fate, _, _ := strings.Cut(id, "-")
	return Fate(fate)
}

// Reasons are the reasons with which messages of a fate may end in the dead-letter queue: none if
// they may not.
func (f Fate) Reasons() []retry.Reason {
	switch f {
	case Never:
		return []retry.Reason{retry.ReasonExhausted}
	case Panics:
		return []retry.Reason{retry.ReasonPanic}
	case Permanent:
		return []retry.Reason{retry.ReasonPermanent}
	case Undecodable:
		return []retry.Reason{retry.ReasonUndecodable}
	case Succeeds, Slow, Once, Twice, Postponed, Dropped:
	}

	return nil
}

// Dies tells whether messages of a fate end in the dead-letter queue.
func (f Fate) Dies() bool { return len(f.Reasons()) > 0 }

// Succeeds tells whether messages of a fate are to be processed in the end.
func (f Fate) Succeeds() bool { return !f.Dies() && f != Dropped }

// Fails reports whether an attempt at a message fails. A message without a known fate always fails.
func (f Fate) Fails(attempt int) bool {
	switch f {
	case Succeeds, Slow, Postponed:
		return false
	case Once:
		return attempt <= 1
	case Twice:
		return attempt <= 2
	case Never, Panics, Permanent, Dropped, Undecodable:
	}

	return true
}

// Err is the error of a handler whose message fails.
var Err = errors.New("this message fails")

var (
	errUnwanted  = errors.New("this message is not wanted any more")
	errPermanent = errors.New("this message fails for good")
)

// Handle does with a message what its fate says. It decides by the attempt that the library tells.
func Handle(id string, attempt retry.Attempt) error {
	f := Of(id)
	switch f {
	case Slow:
		h := fnv.New32a()
		_, _ = h.Write([]byte(id))
		<-time.After(time.Duration(h.Sum32()%200) * time.Millisecond)
	case Panics:
		panic("this message panics")
	case Permanent:
		return retry.Permanent(errPermanent)
	case Dropped:
		return retry.Drop(errUnwanted)
	case Postponed:
		if attempt.Calls == 0 {
			return retry.Postpone(100 * time.Millisecond)
		}
	case Undecodable:
		return errors.New("a handler was called with what cannot be decoded")
	case Succeeds, Once, Twice, Never:
	}
	if f.Fails(attempt.Number) {
		return Err
	}

	return nil
}
