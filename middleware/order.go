package middleware

import (
	"errors"
	"reflect"
	"runtime"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// Watermill's own failure middlewares, by the names of their functions: the router offers no way to ask for the chain.
const (
	watermillMiddleware = "github.com/ThreeDotsLabs/watermill/message/router/middleware."
	poisonQueueName     = watermillMiddleware + "poisonQueue."
	retryName           = watermillMiddleware + "Retry."
	instantAckName      = watermillMiddleware + "InstantAck."
	protectName         = "github.com/amqpretry/watermill-retry/middleware/protect."
	routerName          = "github.com/ThreeDotsLabs/watermill/message.(*handler).handleMessage"
)

var (
	errPoisonOutside = errors.New("middleware order: Watermill's PoisonQueue is outside of the retry middleware and will never " +
		"see an error: add the retry middleware first, and remove PoisonQueue: dead letters go to the dead-letter queue")
	errRetryOutside = errors.New("middleware order: Watermill's Retry is outside of the retry middleware and will never see an " +
		"error: add the retry middleware first; inside of it, Watermill's Retry makes immediate tries within one attempt")
	errInstantAckOutside = errors.New("middleware order: Watermill's InstantAck is outside of the retry middleware: failed messages are " +
		"acknowledged before they can be retried, and lost: remove it, or keep its handlers on a subscriber without retries")
	errProtectOutside = errors.New("middleware order: a middleware of package protect is outside of the retry middleware: what it postpones " +
		"is nacked and comes back at once, and a Deduplicator there loses retries: add the retry middleware first")
	errPoisonInside = errors.New("middleware order: Watermill's PoisonQueue is inside of the retry middleware and takes every error " +
		"away: nothing will be retried: remove it, dead letters go to the dead-letter queue")
)

// reportInnerOrder looks at the middleware right inside of ours when the router builds the chain.
func (p Poison) reportInnerOrder(h message.HandlerFunc) {
	if f := runtime.FuncForPC(reflect.ValueOf(h).Pointer()); f != nil && strings.HasPrefix(f.Name(), poisonQueueName) {
		p.logger().Error("Wrong order of middlewares", errPoisonInside, nil)
	}
}

// reportOuterOrder looks at the middlewares outside of ours, which exist for us only on the stack of a message: it is
// called with the first one of each handler.
func (p Poison) reportOuterOrder(msg *message.Message) {
	for _, err := range outerOrder(callers()) {
		p.logger().Error("Wrong order of middlewares", err, watermill.LogFields{
			"handler_name": message.HandlerNameFromCtx(msg.Context()),
			"topic":        message.SubscribeTopicFromCtx(msg.Context()),
		})
	}
}

// outerOrder finds the mistakes in a stack of function names, innermost first, as far as the router.
func outerOrder(stack []string) []error {
	var (
		found []error
		seen  = map[error]bool{}
	)
	for _, name := range stack {
		var err error

		switch {
		case name == routerName:
			return found
		case strings.HasPrefix(name, poisonQueueName):
			err = errPoisonOutside
		case strings.HasPrefix(name, retryName):
			err = errRetryOutside
		case strings.HasPrefix(name, instantAckName):
			err = errInstantAckOutside
		case strings.HasPrefix(name, protectName):
			err = errProtectOutside
		}

		if err != nil && !seen[err] {
			seen[err] = true
			found = append(found, err)
		}
	}

	return found
}

func callers() []string {
	pcs := make([]uintptr, 128)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])

	var names []string
	for {
		frame, more := frames.Next()
		names = append(names, frame.Function)
		if !more {
			return names
		}
	}
}
