package middleware

import (
	"errors"
	"fmt"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// failed is a failure in the words of the wire format.
type failed struct {
	class                            Class
	text, errorType                  string
	topic, handler, subscriber, host string
	at                               time.Time
}

// fail gives the state that the copy of a failed message carries. It is a pure function.
func fail(s wire.State, v Verdict, f failed) wire.State {
	if f.class != ClassUndecodable { // no handler was called
		s.Attempts++
	}
	if s.FirstFailure.IsZero() {
		s.FirstFailure = f.at
	}
	s.LastFailure = f.at

	s.Topic, s.Handler, s.Subscriber, s.Host = f.topic, f.handler, f.subscriber, f.host
	s.Error, s.ErrorType = f.text, f.errorType
	s.History = wire.Append(s.History, wire.Attempt{
		Number: s.Attempts, At: f.at, Error: f.text, Type: f.errorType, Reason: historyReason(f.class),
	})

	s.Count, s.Delay, s.Reason = v.Count, "", ""

	switch v.Action {
	case ActionRetry:
		s.Delay = config.FormatDelay(v.Delay)
	case ActionDeadLetter:
		s.Count, s.Reason = wire.CountDead, v.Reason
	case ActionDrop, ActionRequeue:
	}

	return s
}

// historyReason tells apart what the error text does not.
func historyReason(c Class) Reason {
	switch c {
	case ClassPanic, ClassCrashed, ClassUnpublishable, ClassPermanent, ClassUndecodable:
		return Reason(c)
	case ClassError, ClassDrop, ClassShutdown:
	}

	return ""
}

// typeName names the type that tells most: wrappers of the standard library, of the usual errors packages and of ours say
// nothing of the cause, so it looks through those, as far as the chain is a chain.
func typeName(err error) string {
	for {
		name := fmt.Sprintf("%T", err)

		switch name {
		case "*fmt.wrapError", "*errors.withStack", "*errors.withMessage", "*middleware.marked":
			if inner := errors.Unwrap(err); inner != nil {
				err = inner
				continue
			}
		}

		return name
	}
}
