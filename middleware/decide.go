package middleware

import (
	"cmp"
	"time"

	"github.com/amqpretry/watermill-retry/config"
)

// Case is everything that Decide decides over.
type Case struct {
	// Class of the failure, and After what its error asks for; see [Classify].
	Class Class
	After time.Duration
	// Failures are the failed attempts before this one.
	Failures int
	// Tries are the immediate tries that this attempt has used up. [config.MaxImmediate] where no more is possible.
	Tries int
	// Now, with Since, where the message's age counts from, and its Deadline; zero if there is none.
	Now, Since, Deadline time.Time
	// Random is in [0, 1), for jitter.
	Random float64
}

// Decide is the whole of the retry logic: what happens to a message with a failure, under a policy. It is a pure function.
//
// The first of these that applies: a shutdown requeues; what is to be dropped is dropped; what has expired goes to its end,
// as do permanent and undecodable failures; what is postponed waits; an immediate try; a retry, if any is left. A wait
// that would end after the deadline does not begin: the message has then expired.
func Decide(policy config.Policy, c Case) Verdict {
	retries := policy.MaxRetries()

	switch c.Class {
	case ClassShutdown:
		return Verdict{Action: ActionRequeue}
	case ClassDrop:
		return Verdict{Action: ActionDrop}
	case ClassExpired:
		return expired(policy)
	case ClassPermanent:
		return Verdict{Action: ActionDeadLetter, Reason: ReasonPermanent}
	case ClassUndecodable:
		return Verdict{Action: ActionDeadLetter, Reason: ReasonUndecodable}
	case ClassPostponed:
		if retries > 0 {
			return postpone(policy, c)
		}
	case ClassError, ClassPanic:
		if c.Failures == 0 && c.Tries < policy.Immediate && c.After == 0 {
			return Verdict{Action: ActionRetryNow}
		}
	case ClassCrashed, ClassUnpublishable:
	}

	count := c.Failures + 1
	if count > retries {
		return Verdict{Action: ActionDeadLetter, Reason: exhausted(c.Class)}
	}

	v := Verdict{Action: ActionRetry, Count: count}
	if c.After > 0 {
		return waitFor(policy, c, v)
	}

	v.Delay = policy.Delay(count)
	wait := v.Delay
	if policy.Jitter > 0 {
		wait -= time.Duration(policy.Jitter * c.Random * float64(v.Delay))
		wait = max(wait.Round(config.MinDelay), config.MinDelay)
		if wait < v.Delay {
			v.Wait = wait
		}
	}

	return unlessOutlived(policy, c, wait, v)
}

func postpone(policy config.Policy, c Case) Verdict {
	since := c.Since
	if since.IsZero() {
		since = c.Now
	}

	v := waitFor(policy, c, Verdict{Action: ActionPostpone, Count: c.Failures})
	if v.Action == ActionPostpone && c.Now.Add(max(c.After, v.Delay)).After(since.Add(maxPostpone(policy))) {
		return Verdict{Action: ActionDeadLetter, Reason: ReasonPostponedTooLong}
	}

	return v
}

func maxPostpone(policy config.Policy) time.Duration {
	return cmp.Or(policy.MaxPostpone, config.DefaultMaxPostpone)
}

// waitFor completes a verdict with a wait for as long as the error asks for, within MaxPostpone.
func waitFor(policy config.Policy, c Case, v Verdict) Verdict {
	after := min(c.After, maxPostpone(policy))
	v.Delay = hopFor(policy, after)
	if v.Delay < after {
		v.NotBefore = c.Now.Add(after + config.MinDelay - 1).Truncate(config.MinDelay) // it is written in whole milliseconds, and not earlier
	}

	return unlessOutlived(policy, c, max(after, v.Delay), v)
}

func unlessOutlived(policy config.Policy, c Case, wait time.Duration, v Verdict) Verdict {
	if hasPassed(c.Deadline, c.Now.Add(wait)) {
		return expired(policy)
	}

	return v
}

// waiting is a message that has come back from its wait, or for the first time.
type waiting struct {
	failures                int
	now, since, lastFailure time.Time
	deadline, notBefore     time.Time
}

// early decides over a message before its handler is called. ok is false if it may be called.
func early(policy config.Policy, w waiting) (v Verdict, ok bool) {
	if hasPassed(w.deadline, w.now) {
		return expired(policy), true
	}

	// Nobody may ask for more: it is forged, or the policy allowed more before.
	notBefore := earlier(w.notBefore, later(w.since, w.lastFailure).Add(maxPostpone(policy)))

	wait := notBefore.Sub(w.now)
	if wait <= 0 { // due
		return Verdict{}, false
	}

	hop := hopFor(policy, wait)
	switch {
	case hop == 0: // a policy without retries has nothing to wait in
		return Verdict{}, false
	case hasPassed(w.deadline, w.now.Add(max(wait, hop))):
		return expired(policy), true
	}

	return Verdict{Action: ActionPostpone, Count: w.failures, Delay: hop, NotBefore: notBefore}, true
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

func expired(policy config.Policy) Verdict {
	if policy.OnExpiry == config.ExpiryDrop {
		return Verdict{Action: ActionDrop, Reason: ReasonExpired}
	}

	return Verdict{Action: ActionDeadLetter, Reason: ReasonExpired}
}

// exhausted names what the last attempt died of, where that says more than that it was the last.
func exhausted(class Class) Reason {
	switch class {
	case ClassPanic:
		return ReasonPanic
	case ClassCrashed:
		return ReasonCrashed
	case ClassUnpublishable:
		return ReasonUnpublishable
	case ClassError, ClassPermanent, ClassDrop, ClassPostponed, ClassExpired, ClassShutdown, ClassUndecodable:
	}

	return ReasonExhausted
}
