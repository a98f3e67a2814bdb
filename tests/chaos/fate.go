package chaos

import (
	"errors"
	"hash/fnv"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/retry"
)

// Fate is what the handler does with a message. The message's id begins with it, so a duplicate has the same one.
type Fate string

// The fates.
const (
	Succeeds  Fate = "succeeds"
	Slow      Fate = "slow"      // succeeds after up to 200 ms
	Once      Fate = "once"      // fails once
	Twice     Fate = "twice"     // fails twice
	Postponed Fate = "postponed" // is postponed once
	Never     Fate = "never"     // fails until its retries are used up
	Panics    Fate = "panics"    // panics each time
	Permanent Fate = "permanent" // fails for good
	Dropped   Fate = "dropped"   // is not wanted any more
	// Undecodable is refused by the marshaler: no handler sees it.
	Undecodable Fate = "undecodable"
)

// fates by how common they are, of 100.
var fates = []struct {
	Fate
	of100 int
}{
	{Succeeds, 47}, {Slow, 6}, {Once, 12}, {Twice, 8}, {Postponed, 5}, {Never, 8}, {Panics, 4}, {Permanent, 4}, {Dropped, 3}, {Undecodable, 3},
}

// pick gives the fate of a number below 100.
func pick(n int) Fate {
	for _, f := range fates {
		if n < f.of100 {
			return f.Fate
		}
		n -= f.of100
	}
	panic("the fates are not 100 in all")
}

// FateOf reads a message's fate from its id.
func FateOf(id string) Fate {
	fate, _, _ := strings.Cut(id, "-")
	return Fate(fate)
}

// letters are the reasons with which messages of a fate may end in the dead-letter queue: none if they may not.
func (f Fate) letters() []retry.Reason {
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

// succeeds tells whether messages of a fate are to be processed in the end.
func (f Fate) succeeds() bool { return len(f.letters()) == 0 && f != Dropped }

var (
	errFate      = errors.New("this message fails")
	errUnwanted  = errors.New("this message is not wanted any more")
	errPermanent = errors.New("this message fails for good")
)

// Handle does with a message what its fate says.
func (f Fate) Handle(id string, attempt retry.Attempt) error {
	failures := 0
	switch f {
	case Succeeds:
	case Slow:
		h := fnv.New32a()
		_, _ = h.Write([]byte(id))
		<-time.After(time.Duration(h.Sum32()%200) * time.Millisecond)
	case Once:
		failures = 1
	case Twice:
		failures = 2
	case Never:
		return errFate
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
	default:
		return retry.Permanent(errors.New("unknown fate"))
	}
	if attempt.Number <= failures {
		return errFate
	}

	return nil
}
