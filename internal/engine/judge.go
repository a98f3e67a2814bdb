package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// Judge decides over what fails outside of a handler.
func (e *Engine) Judge(d Delivery, f retry.Failure) *Settlement {
	// What cannot be decoded reaches no middleware that would look at this.
	if f.Class == retry.ClassUndecodable {
		if s := e.Early(d, f); s != nil {
			return s
		}
	}
	return e.Fail(d, f, true)
}

// Fail decides over a failed attempt. last means that its handler cannot be called again: there is
// no immediate try.
func (e *Engine) Fail(d Delivery, f retry.Failure, last bool) *Settlement {
	f, policy, now := completed(f), d.Policy(), e.Time()
	f.Attempt = attemptOf(d, now)

	class, after := f.Class, time.Duration(0)
	if class != retry.ClassShutdown && class != retry.ClassExpired {
		f.Err = e.decide(f)
		class, after = e.classify(policy, f)
	}

	now = e.Time() // asking may have taken a while
	state := d.State()
	tries := state.Tries
	if last {
		tries = noMoreTries
	}

	verdict := Decide(policy, Case{
		Class: class, After: after, Failures: state.Count, Tries: tries,
		Now: now, Since: state.Since, Deadline: state.Deadline, Random: e.random(), Copy: d.NeedsCopy(),
	})
	if verdict.Action == retry.ActionRequeue {
		return &Settlement{Verdict: verdict}
	}

	s := e.settlement(d, f, verdict, failed{class: class, called: called(f), at: now})
	if began, call, ok := d.End(); ok {
		if call != nil { // the handler may have changed the context since
			s.failure.event.Topic, s.failure.event.Handler = call.Topic, call.Handler
		}
		s.failure.report(retry.EventFailed, verdict, began, now)
	} else if f.Class == retry.ClassCrashed || f.Class == retry.ClassUndecodable {
		s.failure.report(retry.EventUnhandled, verdict, now, now)
	} else {
		s.failure.unheard = true
	}

	return s
}

// completed has what the message tells.
func completed(f retry.Failure) retry.Failure {
	if f.Message != nil {
		f.Payload, f.Topic = f.Message.Payload, cmp.Or(message.SubscribeTopicFromCtx(f.Message.Context()), f.Topic)
	}

	return f
}

// called reports whether a failure is that of a handler's call. A consumer that died was in a
// handler, as far as is known.
func called(f retry.Failure) bool {
	return f.Class != retry.ClassUndecodable && f.Class != retry.ClassExpired
}

// IsLimited reports whether a message can be late or early at all.
func IsLimited(s *wire.State) bool { return !s.Deadline.IsZero() || !s.NotBefore.IsZero() }

// Early decides over a message before its handler is called: it may have outlived its deadline
// meanwhile, or be not due yet.
func (e *Engine) Early(d Delivery, f retry.Failure) *Settlement {
	state, now := d.State(), e.Time()

	verdict, found := early(d.Policy(), state, now)
	if !found {
		return nil
	}

	f = completed(f)
	f.Class, f.Err, f.Attempt = retry.ClassPostponed, nil, attemptOf(d, now)
	if verdict.Reason == retry.ReasonExpired {
		f.Class = retry.ClassExpired
		f.Err = fmt.Errorf("the message expired at %s, before its handler was called",
			state.Deadline.UTC().Format(time.RFC3339))
	}
	s := e.settlement(d, f, verdict, failed{class: f.Class, at: now})
	s.failure.report(retry.EventUnhandled, verdict, now, now)

	return s
}

// settlement completes a verdict with what the copy carries, and logs it.
func (e *Engine) settlement(d Delivery, f retry.Failure, verdict retry.Verdict, happened failed) *Settlement {
	ctx, uuid := context.Background(), ""
	if f.Message != nil {
		ctx, uuid = f.Message.Context(), f.Message.UUID
	}

	happened.text, happened.errorType = e.Describe(f.Err)
	happened.topic, happened.handler = f.Topic, message.HandlerNameFromCtx(ctx)
	happened.subscriber, happened.host = message.SubscriberNameFromCtx(ctx), e.Host
	next := fail(*d.State(), verdict, happened)

	fields := watermill.LogFields{
		"message_uuid": uuid,
		"queue":        d.Queue(),
		"topic":        next.Topic,
		"handler_name": next.Handler,
		"calls":        next.Attempts,
		"class":        string(happened.class),
		"verdict":      verdict.String(),
	}
	if e.PayloadText != nil {
		fields["payload"] = e.payload(f.Payload)
	}
	e.log(verdict, happened, next.Attempts > 0, fields)

	return &Settlement{Verdict: verdict, State: next, failure: failure{Engine: e, decided: happened.at,
		event: retry.Event{
			Topic: next.Topic, Queue: d.Queue(), Handler: next.Handler, Message: f.Message,
			Attempt: f.Attempt, Calls: next.Attempts,
			Class: happened.class, Err: f.Err, Cause: e.causeOf(&next, verdict, happened.class),
		}}}
}

// causeOf is what a dead letter with this state tells, as its headers bound it; nil if nobody
// listens.
func (e *Engine) causeOf(s *wire.State, v retry.Verdict, class retry.Class) *retry.Cause {
	if e == nil || e.OnEvent == nil || v.Action == retry.ActionPostpone {
		return nil
	}

	return &retry.Cause{Error: s.Error, ErrorType: wire.Text(s.ErrorType, wire.MaxErrorTypeBytes),
		Handler: wire.Text(s.Handler, wire.MaxNameBytes), Reason: cmp.Or(v.Reason, exhausted(class))}
}

// log logs a verdict, with the text of ErrorText and not the handler's error.
func (e *Engine) log(v retry.Verdict, happened failed, handled bool, fields watermill.LogFields) {
	what, log := "Message failed", e.Log()
	if v.Reason == retry.ReasonExpired {
		what = "Message has expired"
	}
	text := func() watermill.LogFields { // which an error has by itself
		fields["error"] = happened.text
		return fields
	}

	switch v.Action {
	case retry.ActionRetryNow:
		log.Info("Message failed; calling its handler again at once", text())
	case retry.ActionRetry:
		log.Info("Message failed; it will be retried", text())
	case retry.ActionPostpone:
		if happened.called {
			// an open circuit breaker postpones a whole queue
			log.Debug("Handler postponed the message", text())
		} else {
			log.Debug("Message is not due yet; it goes back to a retry queue", fields)
		}
	case retry.ActionDeadLetter:
		log.Error(what+", it goes to the dead-letter queue", errors.New(happened.text), fields)
	case retry.ActionDrop:
		switch {
		case v.Reason != retry.ReasonExpired:
			log.Error(what+"; dropping it, as its error is marked with retry.Drop", errors.New(happened.text), fields)
		case handled:
			log.Info(what+"; dropping it, as its policy says", text())
		default: // many of these show publishers whose clocks are wrong
			log.Error(what+" before any handler was called; dropping it, as its policy says",
				errors.New(happened.text), fields)
		}
	}
}

// shownError is an error with the text that ErrorText makes of it.
type shownError struct {
	error
	text string
}

func (s shownError) Error() string { return s.text }
func (s shownError) Unwrap() error { return s.error }

// Shown is an error as the router may log it.
func (e *Engine) Shown(err error) error {
	text, _ := e.Describe(err)
	return shownError{err, text}
}

// Describe gives the text and the type of an error. Both come from foreign code, which may panic.
func (e *Engine) Describe(err error) (text, errorType string) {
	if err == nil {
		return "", ""
	}

	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprintf("(the error's text is lost: it panicked with %T)", r)
		}
	}()

	errorType = typeName(err)
	if e.ErrorText != nil {
		return wire.Text(e.ErrorText(err), wire.MaxErrorBytes), errorType
	}

	return wire.Text(err.Error(), wire.MaxErrorBytes), errorType
}

// payload is foreign code's view of a payload, which may be what it failed of.
func (e *Engine) payload(payload []byte) (text string) {
	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprintf("(the payload's text is lost: PayloadText panicked with %T)", r)
		}
	}()

	return wire.Text(e.PayloadText(payload), wire.MaxErrorBytes)
}

// decide asks the decision function.
func (e *Engine) decide(f retry.Failure) (err error) {
	if e.Decide == nil {
		return f.Err
	}

	defer func() {
		if r := recover(); r != nil {
			e.Log().Error("Options.Decide panicked; using the handler's own error", fmt.Errorf("panic with %T", r), nil)
			err = f.Err
		}
	}()

	if err = e.Decide(f); err == nil {
		return f.Err
	}

	return err
}

// classify asks an error what it wants. Errors are foreign code, and one that is a nil pointer in
// an interface panics easily: that is a failed attempt like any other.
func (e *Engine) classify(policy *config.Policy, f retry.Failure) (class retry.Class, after time.Duration) {
	defer func() {
		if r := recover(); r != nil {
			e.Log().Error("A method of the handler's error panicked", fmt.Errorf("%T panicked with %T", f.Err,
				r), nil)
			class, after = f.Class, 0
		}
	}()

	return Classify(policy, f.Class, f.Err)
}

// Rejected decides over a message that a consumer outside of this module has failed, and that its
// queue has dead-lettered for a reason. Only what was rejected is retried. With
// retry.ReasonPermanent, nobody knows how it came here.
//
// The policy's lists of errors are not asked, nor is the decision function: the broker does not
// report the error.
func (e *Engine) Rejected(d Delivery, f retry.Failure, reason retry.Reason) *Settlement {
	now, state := e.Time(), d.State()
	f = completed(f)
	f.Attempt = attemptOf(d, now)

	verdict := retry.Verdict{Action: retry.ActionDeadLetter, Reason: reason}
	happened := failed{class: retry.ClassRejected, at: now}
	switch reason {
	case retry.ReasonRejected:
		happened.called = true
		verdict = Decide(d.Policy(), Case{
			Class: retry.ClassRejected, Failures: state.Count, Tries: noMoreTries,
			Now: now, Since: state.Since, Deadline: state.Deadline, Random: e.random(),
		})
	case retry.ReasonDeliveryLimit:
		happened.called = true
	case retry.ReasonExpired:
		happened.class = retry.ClassExpired
		verdict = expired(d.Policy())
	case retry.ReasonPermanent:
		happened.class = retry.ClassPermanent
	case retry.ReasonUndecodable:
		happened.class = retry.ClassUndecodable
	}

	s := e.settlement(d, f, verdict, happened)
	s.failure.report(retry.EventUnhandled, verdict, now, now)

	return s
}
