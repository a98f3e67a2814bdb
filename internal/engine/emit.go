package engine

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/retry"
)

// Emit reports an event: of now, if it does not say when.
func (e *Engine) Emit(event retry.Event) {
	if e.OnEvent == nil {
		return
	}

	returned := false
	defer func() {
		if returned {
			return
		}
		fields := watermill.LogFields{"event": string(event.Kind), "queue": event.Queue}
		if r := recover(); r != nil {
			text, _ := e.Describe(fmt.Errorf("%v", r)) // a listener's panic may quote the error that it was given
			e.Log().Error("OnEvent panicked", errors.New(text), fields)
		} else {
			e.Log().Error("OnEvent called runtime.Goexit; messages may be stuck until the process ends", nil, fields)
		}
	}()

	if event.At.IsZero() {
		event.At = e.Time()
	}
	e.OnEvent(event)
	returned = true
}

// Begin reports that a call begins, unless it has begun before: in a middleware outside of this
// one.
func (e *Engine) Begin(d Delivery, msg *message.Message) {
	if e.OnEvent == nil {
		d.Begin(e.Time(), nil)
		return
	}
	e.emitCall(d, msg)
}

func (e *Engine) emitCall(d Delivery, msg *message.Message) {
	now := e.Time()
	attempt := attemptOf(d, now)
	event := &retry.Event{
		Kind: retry.EventCall, At: now, Topic: message.SubscribeTopicFromCtx(msg.Context()), Queue: d.Queue(),
		Handler: message.HandlerNameFromCtx(msg.Context()), Message: msg, Attempt: attempt, Calls: attempt.Calls,
	}
	if d.Begin(now, event) {
		e.Emit(*event)
	}
}

// Ended reports that a call has ended without a failure, if there is one: kind is EventSucceeded or
// EventRequeued.
func (e *Engine) Ended(kind retry.EventKind, d Delivery, msg *message.Message) {
	if began, call, ok := d.End(); ok && call != nil {
		e.emitEnd(kind, began, call, msg)
	}
}

func (e *Engine) emitEnd(kind retry.EventKind, began time.Time, call *retry.Event, msg *message.Message) {
	event := *call
	event.Kind, event.Message, event.At = kind, msg, e.Time()
	event.Took = event.At.Sub(began)
	if kind == retry.EventSucceeded {
		event.Calls++
	}
	e.Emit(event)
}

// failure makes the events of a failure: that it is decided over, and what has become of that.
type failure struct {
	*Engine
	event   retry.Event // the fields that all of them have
	unheard bool        // its call has ended before, so that it is no news
	decided time.Time
}

// report reports a verdict, which took from began to at.
func (f *failure) report(kind retry.EventKind, v retry.Verdict, began, at time.Time) {
	if f.OnEvent == nil {
		return
	}
	event := f.event
	event.Kind, event.Verdict, event.At, event.Took = kind, v, at, at.Sub(began)
	f.Emit(event)
}

// settle reports what has become of the verdict. err is a reason that is not the failure itself.
func (f *failure) settle(kind retry.EventKind, v retry.Verdict, err error) {
	if f.Engine == nil || f.unheard { // nothing was decided that anybody hears of
		return
	}
	f.event.Err = cmp.Or(err, f.event.Err)
	f.report(kind, v, f.decided, f.Time())
}

// carriedOut names the event for an action that was carried out.
func carriedOut(action retry.Action) retry.EventKind {
	switch action {
	case retry.ActionRetry:
		return retry.EventRetried
	case retry.ActionPostpone:
		return retry.EventPostponed
	case retry.ActionDeadLetter:
		return retry.EventDeadLettered
	case retry.ActionDrop:
		return retry.EventDropped
	default:
		panic("unreachable: the others are not carried out by a consumer")
	}
}
