package middleware

import (
	"fmt"

	"github.com/amqpretry/watermill-retry/internal/order"
)

// OrderMode says what happens where another middleware keeps the retry middleware from its work:
// see [OrderError].
type OrderMode string

const (
	// OrderEnforce refuses to start, as far as the mistake is seen then, and stops a subscription
	// that would lose messages.
	OrderEnforce OrderMode = "enforce"
	// OrderLog only logs the mistake.
	OrderLog OrderMode = "log"
)

// OrderError reports a middleware of Watermill, or of package protect or tracing, in a place where
// messages are lost, spin, or are not retried, or where it is of no use.
type OrderError struct {
	// Handler is its name in the router, Topic what it subscribes to. Both are empty where they are
	// not known yet.
	Handler, Topic string
	// Middleware is the one in the wrong place, such as "Watermill's Retry".
	Middleware string
	// Problem says where it is and what that leads to, Remedy what to do.
	Problem, Remedy string
	// Severe is true where it is of no use, or loses messages: a router with it does not start
	// under OrderEnforce. Else it is only logged.
	Severe bool
}

func (e *OrderError) Error() string {
	of := ""
	if e.Handler != "" {
		of = fmt.Sprintf(" of handler %q", e.Handler)
	}

	return fmt.Sprintf("cannot retry messages%s: %s is %s; %s", of, e.Middleware, e.Problem, e.Remedy)
}

func newOrderError(m *order.Mistake, handler, topic string) *OrderError {
	return &OrderError{
		Handler: handler, Topic: topic, Middleware: m.Middleware, Problem: m.Problem, Remedy: m.Remedy,
		Severe: m.Level >= order.Wrong,
	}
}

// NoMiddlewareError reports a handler that is fed by a subscriber of the retrier, and has no retry
// middleware. Handler is the name of the handler, Topic the one that it consumes.
type NoMiddlewareError struct{ Handler, Topic string }

func (e *NoMiddlewareError) Error() string {
	return fmt.Sprintf("cannot retry messages of handler %q: it has no retry middleware; "+
		"add it to the router before all others (router.AddMiddleware(retrier.Middleware))", e.Handler)
}
