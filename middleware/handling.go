package middleware

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/retry"
)

// attempt is the handling of one delivery: the handler's call, with its immediate tries.
type attempt struct {
	*engine.Engine
	delivery engine.Delivery
	msg      *message.Message
	// ctx is the message's as it was before the handler: middlewares such as Watermill's Timeout
	// leave their cancelled context behind.
	ctx context.Context
}

func (a *attempt) run(h message.HandlerFunc) ([]*message.Message, error) {
	returned := false
	defer func() {
		if !returned { // a hook has ended the goroutine, as testing.T.FailNow does: nobody else would answer
			a.msg.Nack()
		}
	}()
	produced, err := a.tries(h)
	returned = true

	return produced, err
}

// tries calls the handler until it succeeds or its failure is settled.
func (a *attempt) tries(h message.HandlerFunc) ([]*message.Message, error) {
	restore := func() {}
	if a.delivery.Policy().Immediate > 0 && a.delivery.State().Count == 0 {
		restore = engine.Snapshot(a.msg)
	}

	for {
		if engine.IsLimited(a.delivery.State()) {
			if settled, err := a.early(); settled {
				return nil, err
			}
		}

		a.Begin(a.delivery, a.msg)
		produced, err := a.call(h)
		if err == nil && isNacked(a.msg) {
			err = errNacked
		}
		if err == nil {
			a.delivery.Succeeded()
			return produced, nil
		}
		if isUnsettled(err) {
			return nil, err
		}

		verdict, settleErr := a.fail(err, isAnswered(a.msg))

		switch {
		case settleErr != nil:
			return nil, &unsettledError{a.Shown(err), settleErr}
		case verdict.Action == retry.ActionRequeue:
			return nil, a.Shown(err) // nacked: uncounted, back to its queue
		case verdict.Action != retry.ActionRetryNow:
			return nil, nil
		}

		if a.delivery.Withdrawn() {
			return nil, a.Shown(err) // the broker delivers it again: nobody waits for another try
		}
		restore()
	}
}

// early settles a message that its handler may not see any more, or not yet.
func (a *attempt) early() (settled bool, err error) {
	s := a.Early(a.delivery, retry.Failure{Message: a.msg})
	if s == nil {
		return false, nil
	}

	return true, a.delivery.Settle(a.ctx, s)
}

// unsettledError is a failure that could not be acted on: the message is nacked with it.
type unsettledError struct{ failure, cause error }

func (e *unsettledError) Error() string {
	return fmt.Sprintf("%v (and the failed message stays where it is: %v)", e.failure, e.cause)
}

func (e *unsettledError) Unwrap() []error { return []error{e.failure, e.cause} }

// isUnsettled tells whether a middleware inside has acted on a failure already, as far as it could.
func isUnsettled(err error) bool {
	defer func() { _ = recover() }() // of a handler's error: then it is none of ours

	return errors.As(err, new(*unsettledError))
}

// fail acts on what the handler has returned. last means that it cannot be called again.
func (a *attempt) fail(err error, last bool) (retry.Verdict, error) {
	a.msg.SetContext(a.ctx)

	f := retry.Failure{Class: retry.ClassError, Err: err, Message: a.msg}
	if a.delivery.Withdrawn() {
		f.Class = retry.ClassShutdown
	}

	s := a.Fail(a.delivery, f, last)
	if s.Action == retry.ActionRetryNow {
		a.delivery.Advance(s.State)
		return s.Verdict, nil
	}

	return s.Verdict, a.delivery.Settle(a.ctx, s)
}

// errNacked is what a message has failed of whose handler answers for itself. Its outputs are not
// published: it comes again.
var errNacked = errors.New("the handler nacked the message and returned no error")

func isNacked(msg *message.Message) bool {
	select {
	case <-msg.Nacked():
		return true
	default:
		return false
	}
}

// isAnswered tells whether a handler has acked or nacked the message by itself: then it cannot be
// handled again.
func isAnswered(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	default:
		return isNacked(msg)
	}
}

// call runs the handler. A panic is an error; a Goexit cannot be stopped, so it is acted on here.
func (a *attempt) call(h message.HandlerFunc) (produced []*message.Message, err error) {
	returned := false

	defer func() {
		if returned {
			return
		}

		value := recover()
		if value == nil { // panic(nil) is a *runtime.PanicNilError, so this is a Goexit
			// The goroutine is ending and will not return to the router: this is the last chance to
			// answer.
			if verdict, err := a.fail(errGoexit, true); err != nil || verdict.Action == retry.ActionRequeue {
				a.msg.Nack()
			} else {
				a.msg.Ack()
			}

			return
		}

		produced, err = nil, &retry.PanicError{Value: value, Stack: debug.Stack(), ShowStack: a.PanicStacks}
	}()

	produced, err = h(a.msg)
	returned = true

	return produced, err
}

// errGoexit is the error of an attempt whose handler ended its goroutine, as testing.T.FailNow
// does.
var errGoexit = errors.New("the handler called runtime.Goexit")

// failureListener is a Delivery that wants to know why a handler has failed of which the middleware
// leaves the message alone: of a dead letter, which has no further queue to go to.
type failureListener interface {
	// Failed is told before the router answers. text is what may be logged of err.
	Failed(handler string, err error, text string)
}

// leaveAlone calls the handler of a message that the middleware leaves alone.
func leaveAlone(d engine.Delivery, msg *message.Message, h message.HandlerFunc) (produced []*message.Message,
	err error) {
	listener, is := d.(failureListener)
	if _, deadLetter := retry.DeadLetterFromContext(msg.Context()); !is || !deadLetter {
		return h(msg)
	}
	handler, returned := message.HandlerNameFromCtx(msg.Context()), false
	d.Enter(handler)
	defer d.Leave()

	defer func() {
		if !returned {
			if value := recover(); value != nil {
				produced, err = nil, &retry.PanicError{Value: value, Stack: debug.Stack(),
					ShowStack: d.Engine().PanicStacks}
			} else { // a Goexit: this goroutine will not return to the router, so nobody else would answer
				err = errGoexit
				defer msg.Nack()
			}
		}
		if err != nil {
			text, _ := d.Engine().Describe(err)
			listener.Failed(handler, err, text)
		}
	}()
	produced, err = h(msg)
	returned = true

	return produced, err
}
