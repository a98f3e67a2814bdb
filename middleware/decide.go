package middleware

import "github.com/amqpretry/watermill-retry/config"

// Decide is the whole of the retry logic: what happens to a message that has failed `failures` times before and now fails
// in this class, under this policy. It is a pure function.
func Decide(policy config.Policy, failures int, class Class) Verdict {
	switch class {
	case ClassShutdown:
		return Verdict{Action: ActionRequeue}
	case ClassDrop:
		return Verdict{Action: ActionDrop}
	case ClassPermanent:
		return Verdict{Action: ActionDeadLetter, Reason: ReasonPermanent}
	case ClassUndecodable:
		return Verdict{Action: ActionDeadLetter, Reason: ReasonUndecodable}
	case ClassError, ClassPanic, ClassCrashed, ClassUnpublishable:
	}

	count := failures + 1
	if count <= policy.MaxRetries() {
		return Verdict{Action: ActionRetry, Count: count, Delay: policy.Delay(count)}
	}

	return Verdict{Action: ActionDeadLetter, Reason: exhausted(class)}
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
	case ClassError, ClassPermanent, ClassDrop, ClassShutdown, ClassUndecodable:
	}

	return ReasonExhausted
}
