package middleware

import (
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// Retry is the router middleware that gives failed messages their durable, delayed, non-blocking retries. It belongs
// outermost: what is added after it is part of the attempt.
type Retry struct {
	// Poison is the final step, and holds what both have in common.
	Poison Poison
}

// Middleware returns the Retry middleware.
func (r Retry) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return r.Poison.wrap(h, r.Poison.Judge)
}

// wrap is the life of a message around a handler. judge turns a failure into a settlement.
func (p Poison) wrap(h message.HandlerFunc, judge func(Delivery, Failure) Settlement) message.HandlerFunc {
	p.reportInnerOrder(h)

	var once, foreign sync.Once

	return func(msg *message.Message) ([]*message.Message, error) {
		d := deliveryOf(msg)
		if d == nil || d.Owner() != p.Owner {
			foreign.Do(func() { p.reportForeign(msg) })
			return h(msg)
		}
		if off(d) {
			return h(msg)
		}

		once.Do(func() { p.reportOuterOrder(msg) })

		d.Enter()
		defer d.Leave()

		// Taken before the handler runs: middlewares such as Watermill's Timeout leave their cancelled context behind.
		ctx := msg.Context()
		fail := func(err error) (Class, error) {
			msg.SetContext(ctx)

			class := ClassShutdown
			if !d.Withdrawn() {
				class = p.classify(err)
			}

			return class, d.Settle(ctx, judge(d, Failure{Class: class, Err: err, Message: msg}))
		}

		produced, err := p.call(h, msg, func() {
			// The goroutine is ending and will not return to the router: this is the last chance to answer.
			if class, err := fail(errGoexit); err != nil || class == ClassShutdown {
				msg.Nack()
			} else {
				msg.Ack()
			}
		})
		if err == nil {
			d.Succeeded()
			return produced, nil
		}

		class, settleErr := fail(err)
		if settleErr != nil {
			return nil, fmt.Errorf("%w (and the failed message stays where it is: %w)", err, settleErr)
		}
		if class == ClassShutdown {
			return nil, err // nacked: uncounted, back to its queue
		}

		return nil, nil
	}
}

// classify asks an error what it wants. Errors are foreign code, and one that is a nil pointer in an interface panics easily: that is
// a failed attempt like any other.
func (p Poison) classify(err error) (class Class) {
	defer func() {
		if r := recover(); r != nil {
			p.logger().Error("A handler's error panicked when it was looked at", fmt.Errorf("%T: %v", err, r), nil)
			class = ClassError
		}
	}()

	return Classify(err)
}

// call runs the handler. A panic is an error; a Goexit cannot be stopped, only told to ended.
func (p Poison) call(h message.HandlerFunc, msg *message.Message, ended func()) (produced []*message.Message, err error) {
	returned := false

	defer func() {
		if returned {
			return
		}

		value := recover()
		if value == nil { // panic(nil) is a *runtime.PanicNilError, so this is a Goexit
			ended()
			return
		}

		produced, err = nil, &PanicError{Value: value, Stack: debug.Stack(), ShowStack: p.PanicStacks}
	}()

	produced, err = h(msg)
	returned = true

	return produced, err
}

func (p Poison) reportForeign(msg *message.Message) {
	p.logger().Info(
		"Message does not come from this plug, it is passed on untouched: it was received by another Pub/Sub, "+
			"by a subscriber that was not made with this plug's config, or was copied on its way",
		watermill.LogFields{
			"topic":        message.SubscribeTopicFromCtx(msg.Context()),
			"handler_name": message.HandlerNameFromCtx(msg.Context()),
		},
	)
}
