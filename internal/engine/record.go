package engine

import (
	"cmp"
	"errors"
	"reflect"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// failed is a failure in the words of the wire format.
type failed struct {
	class                            retry.Class
	called                           bool // a handler was
	text, errorType                  string
	topic, handler, subscriber, host string
	at                               time.Time
}

// fail gives the state that a message carries after a failure: on its copy, or into the next
// immediate try. It is a pure function.
func fail(s wire.State, v retry.Verdict, f failed) wire.State {
	if f.called {
		s.Attempts++
	}
	s.Topic, s.Handler, s.Subscriber, s.Host = f.topic, f.handler, f.subscriber, f.host
	s.Delay, s.NotBefore, s.Reason = "", v.NotBefore, ""

	switch v.Action {
	case retry.ActionRetryNow:
		s.Tries++
	case retry.ActionRetry, retry.ActionPostpone:
		s.Count, s.Delay, s.Tries = v.Count, config.FormatDelay(v.Delay), 0
	case retry.ActionDeadLetter:
		s.Count, s.Reason, s.Tries, s.Canary = header.CountDead, v.Reason, 0, ""
	}
	if v.Action == retry.ActionPostpone {
		return s // nothing has failed
	}

	if s.FirstFailure.IsZero() {
		s.FirstFailure = f.at
	}
	s.LastFailure = f.at
	if f.class != retry.ClassExpired || s.Error == "" { // else what failed before says more
		s.Error, s.ErrorType = f.text, f.errorType
	}
	s.History = wire.Append(s.History, retry.FailedCall{
		Number: s.Attempts, At: f.at, Error: f.text, Type: f.errorType, Reason: historyReason(f.class, v),
	})

	return s
}

// historyReason tells apart what the error text does not.
func historyReason(c retry.Class, v retry.Verdict) retry.Reason {
	switch c {
	case retry.ClassPanic, retry.ClassCrashed, retry.ClassUnpublishable, retry.ClassPermanent, retry.ClassUndecodable,
		retry.ClassExpired:
		return retry.Reason(c)
	case retry.ClassRejected:
		return cmp.Or(v.Reason, retry.ReasonRejected)
	case retry.ClassPostponed:
		return v.Reason // it counts as a failure only at the end
	default:
		return ""
	}
}

// typeName names the type that tells most: wrappers of the standard library, of the usual errors
// packages and of ours say nothing of the cause, so it looks through those, as far as the chain is
// a chain.
func typeName(err error) string {
	for {
		name := reflect.TypeOf(err).String()

		switch name {
		case "*fmt.wrapError", "*errors.withStack", "*errors.withMessage", "*retry.MarkedError":
			if inner := errors.Unwrap(err); inner != nil {
				err = inner
				continue
			}
		}

		return name
	}
}
