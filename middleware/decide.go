package middleware

import (
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
	if v.Action == ActionPostpone && c.Now.Add(max(c.After, v.Delay)).After(since.Add(policy.MaxPostpone)) {
		return Verdict{Action: ActionDeadLetter, Reason: ReasonPostponedTooLong}
	}

	return v
}

// waitFor completes a verdict with a wait for as long as the error asks for.
func waitFor(policy config.Policy, c Case, v Verdict) Verdict {
	v.Delay = policy.DelayFor(c.After)
	if v.Delay < c.After {
		v.NotBefore = c.Now.Add(c.After)
	}

	return unlessOutlived(policy, c, max(c.After, v.Delay), v)
}

func unlessOutlived(policy config.Policy, c Case, wait time.Duration, v Verdict) Verdict {
	if hasPassed(c.Deadline, c.Now.Add(wait)) {
		return expired(policy)
	}

	return v
}

// early decides over a message before its handler is called. ok is false if it may be called.
func early(policy config.Policy, count int, deadline, notBefore, now time.Time) (v Verdict, ok bool) {
	if hasPassed(deadline, now) {
		return expired(policy), true
	}
	if wait := notBefore.Sub(now); wait > 0 && policy.MaxRetries() > 0 {
		return Verdict{Action: ActionPostpone, Count: count, Delay: policy.DelayFor(wait), NotBefore: notBefore}, true
	}

	return Verdict{}, false
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
