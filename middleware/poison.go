package middleware

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Poison is the final step: it makes a failure into a dead letter that explains itself. Retry ends with it; alone, its
// Middleware serves handlers without retries, whose first failure goes to the dead-letter queue.
//
// A plug makes both from its options: see Plug.Middleware and Plug.Poison in package amqpretry.
type Poison struct {
	// Owner is the plug whose messages are handled; those of others pass untouched. Required.
	Owner any

	// Logger gets what is logged. Defaults to slog.Default(); watermill.NopLogger{} logs nothing.
	Logger watermill.LoggerAdapter

	// Order says what happens to a wrong order of middlewares. Defaults to OrderEnforce.
	Order OrderMode

	// Host is written on every failed message, to tell instances apart. Optional.
	Host string

	// Decide is asked about every failure, before the policy is: see [Failure]. Optional. A panic in it is logged, and the
	// error itself decides.
	Decide func(Failure) error

	// ErrorText makes the text that is written on a failed message and logged from a handler's error: the place to redact.
	// Defaults to the error's own text. A panic in it costs the text, not the message.
	ErrorText func(error) string

	// PayloadText makes the text of a failed message's payload for the log, at most 2 KiB of which are kept: the place to
	// redact. Without it no payload is logged; none is ever written anywhere else.
	PayloadText func(payload []byte) string

	// PanicStacks adds the stack to the error text of a panic. Off by default: stacks can show what a dead letter should not.
	PanicStacks bool

	// Now is the clock; time.Now by default. For tests.
	Now func() time.Time

	// Random gives the random part of jitter, in [0, 1). For tests.
	Random func() float64

	// OnEvent is told of everything that happens: see [Event]. Optional.
	OnEvent func(Event)
}

// Failure is what happened to a message.
//
// A decision function gets it, and returns the error as it is to be taken: Err itself for what the policy says, or Err
// marked with Permanent, Drop, Transient, RetryAfter or Postpone, which outranks everything that the policy and the error
// itself say; or another error, whose text is then the one that is kept. nil means Err. What it cannot override are the
// bounds: retries, ages and the deadline; and a shutdown, which is no failure.
//
//	func(f middleware.Failure) error {
//		if f.Class == middleware.ClassUndecodable && f.Topic == "orders" {
//			return middleware.RetryAfter(time.Minute, f.Err) // a schema may be late
//		}
//		return f.Err
//	}
type Failure struct {
	// Class is what happened: ClassError for whatever a handler returned or panicked with, ClassUndecodable,
	// ClassCrashed or ClassUnpublishable.
	Class Class
	Err   error
	// Message is the message as the handler had it. Where no handler saw it (undecodable, crashed), it is what could be made
	// of the delivery.
	Message *message.Message
	// Payload of the message, also when it could not be decoded.
	Payload []byte
	// Attempt that failed.
	Attempt Attempt
	// Topic that was subscribed to.
	Topic string

	last bool // no immediate try is possible any more
}

// Middleware dead-letters a message at its first failure, whatever the policy of its queue says of retries.
func (p Poison) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return p.wrap(h, func(d Delivery) {
		policy := *d.Policy()
		policy.Mode, policy.Retries, policy.Delays, policy.Backoff, policy.Immediate = config.ModeDeadLetter, 0, nil, config.Backoff{}, 0
		d.Narrow(policy)
	})
}

// Judge decides over a failure of a delivery. It is what Retry does with a handler's error; the consumer uses it for what
// fails outside of a handler.
func (p Poison) Judge(d Delivery, f Failure) Settlement {
	// What cannot be decoded reaches no middleware that would look at this.
	if f.Class == ClassUndecodable {
		if s := p.early(d, f); s != nil {
			return *s
		}
	}
	f.last = true // there is no handler that could be called again

	return p.judge(d, f)
}

func (p *Poison) judge(d Delivery, f Failure) Settlement {
	f, policy := f.completed(), d.Policy()
	now := p.now()
	f.Attempt = attemptOf(d, now)

	class, after := f.Class, time.Duration(0)
	if class != ClassShutdown && class != ClassExpired {
		f.Err = p.decide(f)
		class, after = p.classify(*policy, f)
	}

	now = p.now() // asking may have taken a while
	state := d.State()
	tries := state.Tries
	if f.last {
		tries = config.MaxImmediate
	}

	verdict := Decide(*policy, Case{
		Class: class, After: after, Failures: state.Count, Tries: tries,
		Now: now, Since: state.Since, Deadline: state.Deadline, Random: p.random(),
	})
	if verdict.Action == ActionRequeue {
		return Settlement{Verdict: verdict, failure: failure{untold: true}}
	}

	s := p.settlement(d, f, verdict, failed{class: class, called: called(f), at: now})
	if began, attempt, ok := d.End(); ok {
		if attempt != nil { // the handler may have changed the context since
			s.failure.event.Topic, s.failure.event.Handler = attempt.Topic, attempt.Handler
		}
		s.failure.attempt(verdict, began)
	} else if f.Class == ClassCrashed || f.Class == ClassUndecodable {
		s.failure.unhandled(verdict)
	} else {
		s.failure.untold = true
	}

	return s
}

// completed has what the message tells.
func (f Failure) completed() Failure {
	if f.Message != nil {
		f.Payload, f.Topic = f.Message.Payload, first(message.SubscribeTopicFromCtx(f.Message.Context()), f.Topic)
	}

	return f
}

// called tells whether a failure is that of a handler's call. A consumer that died was in a handler, as far as is known.
func called(f Failure) bool { return f.Class != ClassUndecodable && f.Class != ClassExpired }

// isLimited tells whether a message can be late or early at all.
func isLimited(s *wire.State) bool { return !s.Deadline.IsZero() || !s.NotBefore.IsZero() }

// early decides over a message before its handler is called: it may have outlived its deadline meanwhile, or be not due yet.
func (p *Poison) early(d Delivery, f Failure) *Settlement {
	state, now := d.State(), p.now()

	verdict, found := early(*d.Policy(), waiting{
		failures: state.Count, now: now, since: state.Since, lastFailure: state.LastFailure,
		deadline: state.Deadline, notBefore: state.NotBefore,
	})
	if !found {
		return nil
	}

	f = f.completed()
	f.Class, f.Err = ClassPostponed, nil
	if verdict.Reason == ReasonExpired {
		f.Class = ClassExpired
		f.Err = fmt.Errorf("the message expired at %s, before its handler was called", state.Deadline.UTC().Format(time.RFC3339))
	}
	s := p.settlement(d, f, verdict, failed{class: f.Class, at: now})
	s.failure.unhandled(verdict)

	return &s
}

// settlement completes a verdict with what the copy carries, and logs it.
func (p *Poison) settlement(d Delivery, f Failure, verdict Verdict, happened failed) Settlement {
	ctx, uuid := context.Background(), ""
	if f.Message != nil {
		ctx, uuid = f.Message.Context(), f.Message.UUID
	}

	happened.text, happened.errorType = p.describe(f.Err)
	happened.topic, happened.handler = f.Topic, message.HandlerNameFromCtx(ctx)
	happened.subscriber, happened.host = message.SubscriberNameFromCtx(ctx), p.Host
	next := fail(*d.State(), verdict, happened)

	fields := watermill.LogFields{
		"message_uuid": uuid,
		"queue":        d.Queue(),
		"topic":        next.Topic,
		"handler_name": next.Handler,
		"attempts":     next.Attempts,
		"class":        string(happened.class),
		"verdict":      verdict.String(),
	}
	if p.PayloadText != nil {
		fields["payload"] = p.payload(f.Payload)
	}
	p.log(verdict, happened, next.Attempts > 0, fields)

	return Settlement{Verdict: verdict, State: next, failure: failure{Poison: *p, decided: happened.at, event: Event{
		Topic: next.Topic, Queue: d.Queue(), Handler: next.Handler, Message: f.Message, Attempt: attemptOf(d, happened.at), Calls: next.Attempts,
		Class: happened.class, Err: f.Err,
	}}}
}

func (p *Poison) log(v Verdict, happened failed, handled bool, fields watermill.LogFields) {
	what, log := "Message failed", p.logger()
	if v.Reason == ReasonExpired {
		what = "Message has expired"
	}
	text := fields.Add(watermill.LogFields{"err": happened.text})

	switch v.Action {
	case ActionRetryNow:
		log.Info("Message failed, its handler is called again at once", text)
	case ActionRetry:
		log.Info("Message failed, it will be retried", text)
	case ActionPostpone:
		if happened.called {
			log.Debug("Message is postponed, as its handler asks", text) // an open circuit breaker postpones a whole queue
		} else {
			log.Debug("Message is not due yet, it goes on waiting", fields)
		}
	case ActionDeadLetter:
		log.Error(what+", it goes to the dead-letter queue", loggedError(happened.text), fields)
	case ActionDrop:
		switch {
		case v.Reason != ReasonExpired:
			log.Error(what+" and is dropped, as its error asks", loggedError(happened.text), fields)
		case handled:
			log.Info(what+" and is dropped, as its policy says", text)
		default: // many of these show publishers whose clocks are wrong
			log.Error(what+" and is dropped, as its policy says; no handler was ever called", loggedError(happened.text), fields)
		}
	case ActionRequeue:
	}
}

// loggedError hands a text to a logger that wants an error: the redacted one, not the handler's.
type loggedError string

func (e loggedError) Error() string { return string(e) }

// shownError is an error as the router may log it: with the text that ErrorText makes of it.
type shownError struct {
	error
	text string
}

func (e shownError) Error() string { return e.text }
func (e shownError) Unwrap() error { return e.error }

func (p *Poison) shown(err error) error {
	text, _ := p.describe(err)
	return shownError{err, text}
}

// describe gives the text and the type of an error. Both come from foreign code, which may panic.
func (p *Poison) describe(err error) (text, errorType string) {
	if err == nil {
		return "", ""
	}

	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprintf("(the error's text is lost: it panicked with %T)", r)
		}
	}()

	errorType = typeName(err)
	if p.ErrorText != nil {
		return wire.Text(p.ErrorText(err), wire.MaxErrorBytes), errorType
	}

	return wire.Text(err.Error(), wire.MaxErrorBytes), errorType
}

// payload is foreign code's view of a payload, which may be what it failed of.
func (p *Poison) payload(payload []byte) (text string) {
	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprintf("(the payload's text is lost: PayloadText panicked with %T)", r)
		}
	}()

	return wire.Text(p.PayloadText(payload), wire.MaxErrorBytes)
}

// decide asks the decision function.
func (p *Poison) decide(f Failure) (err error) {
	if p.Decide == nil {
		return f.Err
	}

	defer func() {
		if r := recover(); r != nil {
			p.logger().Error("Decide panicked, the error itself decides", fmt.Errorf("panic with %T", r), nil)
			err = f.Err
		}
	}()

	if err = p.Decide(f); err == nil {
		return f.Err
	}

	return err
}

// classify asks an error what it wants. Errors are foreign code, and one that is a nil pointer in an interface panics easily: that is
// a failed attempt like any other.
func (p *Poison) classify(policy config.Policy, f Failure) (class Class, after time.Duration) {
	defer func() {
		if r := recover(); r != nil {
			p.logger().Error("A handler's error panicked when it was looked at", fmt.Errorf("%T panicked with %T", f.Err, r), nil)
			class, after = f.Class, 0
		}
	}()

	return Classify(policy, f.Class, f.Err)
}

func (p *Poison) logger() watermill.LoggerAdapter {
	if p.Logger == nil {
		return watermill.NewSlogLogger(nil)
	}

	return p.Logger
}

func (p *Poison) now() time.Time {
	if p.Now == nil {
		return time.Now()
	}

	return p.Now()
}

func (p *Poison) random() float64 {
	if p.Random == nil {
		return rand.Float64()
	}

	return p.Random()
}

func first(s ...string) string {
	for _, v := range s {
		if v != "" {
			return v
		}
	}

	return ""
}
