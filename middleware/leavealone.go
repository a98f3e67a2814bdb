package middleware

import (
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/retry"
)

// failureListener is a Delivery that wants to know why a handler has failed of which the middleware leaves the message
// alone: of a dead letter, which has no further queue to go to.
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
