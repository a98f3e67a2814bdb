package engine

import (
	"cmp"
	"math"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// noMoreTries are more immediate tries than any policy has.
const noMoreTries = math.MaxInt

// Case is everything that Decide decides over.
type Case struct {
	// Class of the failure, and After what its error asks for; see [Classify].
	Class retry.Class
	After time.Duration
	// Failures are the failed attempts before this one.
	Failures int
	// Tries are the immediate tries that this attempt has used up. noMoreTries where no more is
	// possible.
	Tries int
	// Now, with Since, where the message's age counts from, and its Deadline; zero if there is
	// none.
	Now, Since, Deadline time.Time
	// Random is in [0, 1), for jitter.
	Random float64
	// Copy reports that the broker cannot bring the message back by itself.
	Copy bool
}

// Decide is the whole of the retry logic: what happens to a message with a failure, under a policy.
// It is a pure function.
//
// The first of these that applies: a shutdown requeues; what is to be dropped is dropped; what has
// expired goes to its end, as do permanent and undecodable failures; what is postponed waits; an
// immediate try; a retry, if any is left. A wait that would end after the deadline does not begin:
// the message has then expired.
func Decide(policy *config.Policy, c Case) retry.Verdict {
	retries := policy.MaxRetries()

	switch c.Class {
	case retry.ClassShutdown:
		return retry.Verdict{Action: retry.ActionRequeue}
	case retry.ClassDrop:
		return retry.Verdict{Action: retry.ActionDrop}
	case retry.ClassExpired:
		return expired(policy)
	case retry.ClassPermanent:
		return retry.Verdict{Action: retry.ActionDeadLetter, Reason: retry.ReasonPermanent}
	case retry.ClassUndecodable:
		return retry.Verdict{Action: retry.ActionDeadLetter, Reason: retry.ReasonUndecodable}
	case retry.ClassPostponed:
		if retries > 0 {
			return postpone(policy, c)
		}
	case retry.ClassError, retry.ClassPanic:
		if c.Failures == 0 && c.Tries < policy.Immediate && c.After == 0 {
			return retry.Verdict{Action: retry.ActionRetryNow}
		}
	}

	count := c.Failures + 1
	if count > retries {
		return retry.Verdict{Action: retry.ActionDeadLetter, Reason: exhausted(c.Class)}
	}

	v := retry.Verdict{Action: retry.ActionRetry, Count: count}
	if c.After > 0 {
		return waitFor(policy, c, v)
	}

	if byBroker(policy, c) {
		if v.ByBroker = true; policy.Strategy != config.StrategyRedelivery {
			v.Delay = policy.Delay(count)
		}
		return unlessOutlived(policy, c, v.Delay, v)
	}

	v.Delay = policy.Delay(count)
	switch wait := policy.Jittered(v.Delay, c.Random); {
	case policy.Strategy == config.StrategyLadder: // it can wait for just that
		v.Delay = wait
	case wait < v.Delay:
		v.Wait = wait
	}

	return unlessOutlived(policy, c, cmp.Or(v.Wait, v.Delay), v)
}

// byBroker reports whether the broker brings a failed message back. One that its consumers have
// died of comes back by a copy, which carries that.
func byBroker(policy *config.Policy, c Case) bool {
	return policy.Strategy.ByBroker() && !c.Copy && c.Class != retry.ClassCrashed
}

func postpone(policy *config.Policy, c Case) retry.Verdict {
	since := c.Since
	if since.IsZero() {
		since = c.Now
	}

	v := waitFor(policy, c, retry.Verdict{Action: retry.ActionPostpone, Count: c.Failures})
	if v.Action == retry.ActionPostpone && c.Now.Add(max(c.After, v.Delay)).After(since.Add(maxPostpone(policy))) {
		return retry.Verdict{Action: retry.ActionDeadLetter, Reason: retry.ReasonPostponedTooLong}
	}

	return v
}

func maxPostpone(policy *config.Policy) time.Duration {
	return cmp.Or(policy.MaxPostpone, config.Default().MaxPostpone)
}

// waitFor completes a verdict with a wait for as long as the error asks for, within MaxPostpone.
func waitFor(policy *config.Policy, c Case, v retry.Verdict) retry.Verdict {
	after := min(c.After, maxPostpone(policy))
	v.Delay = Hop(policy, after)
	if v.Delay < after {
		// it is written in whole milliseconds, and not earlier
		v.NotBefore = c.Now.Add(after + time.Millisecond - 1).Truncate(time.Millisecond)
	}

	return unlessOutlived(policy, c, max(after, v.Delay), v)
}

func unlessOutlived(policy *config.Policy, c Case, wait time.Duration, v retry.Verdict) retry.Verdict {
	if hasPassed(c.Deadline, c.Now.Add(wait)) {
		return expired(policy)
	}

	return v
}

// early decides over a message before its handler is called: one that has come back from its wait,
// or for the first time. ok is false if it may be called.
func early(policy *config.Policy, s *wire.State, now time.Time) (v retry.Verdict, ok bool) {
	if hasPassed(s.Deadline, now) {
		return expired(policy), true
	}

	// Nobody may ask for more: it is forged, or the policy allowed more before.
	notBefore := earlier(s.NotBefore, later(s.Since, s.LastFailure).Add(maxPostpone(policy)))

	wait := notBefore.Sub(now)
	if wait <= 0 { // due
		return retry.Verdict{}, false
	}

	hop := Hop(policy, wait)
	switch {
	case hop == 0: // a policy without retries has nothing to wait in
		return retry.Verdict{}, false
	case hasPassed(s.Deadline, now.Add(max(wait, hop))):
		return expired(policy), true
	}

	return retry.Verdict{Action: retry.ActionPostpone, Count: s.Count, Delay: hop, NotBefore: notBefore}, true
}

func earlier(a, b time.Time) time.Time {
	if a.After(b) {
		return b
	}

	return a
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}

	return b
}

func hasPassed(deadline, now time.Time) bool { return !deadline.IsZero() && !now.Before(deadline) }

func expired(policy *config.Policy) retry.Verdict {
	if policy.OnExpiry == config.ExpiryDrop {
		return retry.Verdict{Action: retry.ActionDrop, Reason: retry.ReasonExpired}
	}

	return retry.Verdict{Action: retry.ActionDeadLetter, Reason: retry.ReasonExpired}
}

// exhausted names what the last attempt died of, where that says more than that it was the last.
func exhausted(class retry.Class) retry.Reason {
	switch class {
	case retry.ClassPanic, retry.ClassCrashed, retry.ClassUnpublishable, retry.ClassRejected:
		return retry.Reason(class)
	default:
		return retry.ReasonExhausted
	}
}

// Hop is the delay in which a message waits next that is to wait so long. It is 0 only for a
// policy that retries nothing.
//
// No wait that an error asks for ends early. So a message takes one delay that is long enough if
// that is not much longer; else it goes through the longest one that is shorter, and then on with
// the rest. A wait that is longer than all delays takes the longest as often as it takes: that
// costs the broker one republished message for each, and nobody a call of a handler.
func Hop(policy *config.Policy, wait time.Duration) time.Duration {
	over := policy.DelayFor(wait)
	if over <= wait+wait/hopTolerance {
		return over
	}
	under := longestUnder(policy, wait)
	if under == 0 {
		return over
	}
	// What the way through the shorter ones takes in all, if the rest is one more of them.
	hops := (wait + under - 1) / under
	if hops > mostHops || hops*under >= over {
		return over
	}

	return under
}

const (
	// hopTolerance is the part of a wait, one fourth, by which a single delay may be longer: it
	// saves republishing.
	hopTolerance = 4
	// mostHops is how many shorter delays may take the place of a single one that is too long. The
	// steps of the default policy are factors of 4 to 6.
	mostHops = 10
)

// longestUnder is the longest delay of the policy that is shorter than wait, 0 if there is none.
func longestUnder(policy *config.Policy, wait time.Duration) time.Duration {
	var found time.Duration
	for retry := range policy.MaxRetries() {
		if d := policy.Delay(retry + 1); d < wait {
			found = max(found, d)
		}
	}

	return found
}
