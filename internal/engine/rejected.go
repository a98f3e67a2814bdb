package engine

import (
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/retry"
)

// Rejected decides over a message that a consumer outside of this module has failed, and that its queue has
// dead-lettered for a reason. Only what was rejected is retried. With retry.ReasonPermanent, nobody knows how it came
// here.
//
// The policy's lists of errors are not asked, nor is the decision function: the broker does not report the error.
func (e *Engine) Rejected(d Delivery, f retry.Failure, reason retry.Reason) Settlement {
	now, state := e.Time(), d.State()
	f = completed(f)
	f.Attempt = attemptOf(d, now)

	verdict := retry.Verdict{Action: retry.ActionDeadLetter, Reason: reason}
	happened := failed{class: retry.ClassRejected, at: now}
	switch reason {
	case retry.ReasonRejected:
		happened.called = true
		verdict = Decide(*d.Policy(), Case{
			Class: retry.ClassRejected, Failures: state.Count, Tries: config.MaxImmediate,
			Now: now, Since: state.Since, Deadline: state.Deadline, Random: e.random(),
		})
	case retry.ReasonDeliveryLimit:
		happened.called = true
	case retry.ReasonExpired:
		happened.class = retry.ClassExpired
		verdict = expired(*d.Policy())
	case retry.ReasonPermanent:
		happened.class = retry.ClassPermanent
	case retry.ReasonUndecodable:
		happened.class = retry.ClassUndecodable
	}

	s := e.settlement(d, f, verdict, happened)
	s.failure.unhandled(verdict)

	return s
}
