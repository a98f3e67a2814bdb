package middleware

import (
	"fmt"
	"slices"
	"strings"
)

// OrderMode says what happens where another middleware keeps the retry middleware from its work: see [OrderError].
type OrderMode string

const (
	// OrderEnforce refuses to start, as far as the mistake is seen then, and stops a subscription that would lose messages.
	OrderEnforce OrderMode = "enforce"
	// OrderLog only logs the mistake.
	OrderLog OrderMode = "log"
)

// OrderError reports a middleware of Watermill, or of package protect, in a place where messages are lost, spin, or are not
// retried.
type OrderError struct {
	// Handler is its name in the router, Topic what it subscribes to. Both are empty where they are not known yet.
	Handler, Topic string
	// Middleware is the one in the wrong place, such as "Watermill's Retry".
	Middleware string
	// Problem says where it is and what that leads to, Remedy what to do.
	Problem, Remedy string

	level level
}

func (e *OrderError) Error() string {
	of := ""
	if e.Handler != "" {
		of = fmt.Sprintf(" of handler %q", e.Handler)
	}

	return fmt.Sprintf("cannot retry messages%s: %s is %s; %s", of, e.Middleware, e.Problem, e.Remedy)
}

// Refused tells whether a router with this mistake is not to start under OrderEnforce.
func (e *OrderError) Refused() bool { return e.level >= levelWrong }

// level says how bad a mistake is.
type level int

const (
	// levelPossible can be what somebody wants, so it is logged and never refused.
	levelPossible level = iota
	// levelWrong is of no use where it is.
	levelWrong
	// levelLoses loses messages or makes them spin: a subscription that meets it stops.
	levelLoses
)

// effect is what a middleware does in a place.
type effect struct {
	level   level
	problem string
	remedy  string
	// stock means that the plug's own subscriber is not affected.
	stock bool
}

// rule knows the middleware whose functions have names with this prefix. The router offers no other way to tell which it has.
// A name that is not known, or has changed, is no mistake: what users have made themselves must never be refused.
type rule struct {
	prefix          string
	middleware      string
	outside, inside *effect
}

const (
	module            = "github.com/amqpretry/watermill-retry/"
	watermillPrefix   = "github.com/ThreeDotsLabs/watermill/message/router/middleware."
	poisonQueuePrefix = watermillPrefix + "poisonQueue."
	protectPrefix     = module + "middleware/protect."
	routerName        = "github.com/ThreeDotsLabs/watermill/message.(*handler).handleMessage"
)

var (
	sees = func(what string) *effect {
		return &effect{
			level: levelWrong, problem: "outside of the retry middleware and never sees an error",
			remedy: "add the retry middleware first" + what,
		}
	}
	takesRetries = func(where string) *effect {
		return &effect{
			level: levelLoses, problem: where + " of the retry middleware: it takes retries for duplicates, and they are lost",
			remedy: "use protect.Deduplicator, or protect.ByAttempt(deduplicator), inside of the retry middleware",
		}
	}
	failsOutside = &effect{
		level: levelLoses, problem: "outside of the retry middleware: what it fails is redelivered at once, without count or delay",
		remedy: "add the retry middleware first",
	}
)

// rules has every middleware of Watermill 1.5 that can do harm. The others may be on either side: CorrelationID, Recoverer,
// Throttle, Timeout, and those of components/metrics.
var rules = []rule{
	{
		prefix: watermillPrefix + "(*Deduplicator).Middleware", middleware: "Watermill's Deduplicator",
		outside: takesRetries("outside"), inside: takesRetries("inside"),
	},
	{
		prefix: watermillPrefix + "InstantAck", middleware: "Watermill's InstantAck",
		outside: &effect{
			level: levelLoses, problem: "outside of the retry middleware: messages are acknowledged before they are handled: those that fail are lost on a stock subscriber, and can be lost on the plug's own",
			remedy: "remove it, or keep its handlers on a subscriber without retries",
		},
		inside: &effect{
			level: levelLoses, stock: true,
			problem: "inside of the retry middleware, on a stock subscriber: failed messages are acknowledged at once, and lost",
			remedy:  "remove it, or use plug.NewSubscriber()",
		},
	},
	{
		prefix: watermillPrefix + "Duplicator", middleware: "Watermill's Duplicator",
		outside: &effect{
			level: levelLoses, problem: "outside of the retry middleware: each failure is forwarded twice",
			remedy: "add the retry middleware first",
		},
	},
	{prefix: watermillPrefix + "RandomFail", middleware: "Watermill's RandomFail", outside: failsOutside},
	{prefix: watermillPrefix + "RandomPanic", middleware: "Watermill's RandomPanic", outside: failsOutside},
	{prefix: protectPrefix, middleware: "a middleware of package protect", outside: failsOutside},
	{
		prefix: poisonQueuePrefix, middleware: "Watermill's PoisonQueue",
		outside: &effect{
			level: levelWrong, problem: "outside of the retry middleware and sees no error but those of shutdowns, which are no failures",
			remedy: "remove it: dead letters go to the dead-letter queue",
		},
		inside: &effect{ // PoisonQueueWithFilter has the same name, and may be meant
			level: levelPossible, problem: "inside of the retry middleware and takes its errors away: they are not retried",
			remedy: "remove it: dead letters go to the dead-letter queue",
		},
	},
	{
		prefix: watermillPrefix + "Retry.", middleware: "Watermill's Retry",
		outside: sees("; inside of it, Watermill's Retry makes immediate tries within one attempt"),
	},
	{prefix: watermillPrefix + "CircuitBreaker.", middleware: "Watermill's CircuitBreaker", outside: sees(", or use protect.CircuitBreaker inside of it")},
	{prefix: watermillPrefix + "IgnoreErrors.", middleware: "Watermill's IgnoreErrors", outside: sees("")},
	{prefix: watermillPrefix + "(*DelayOnError).", middleware: "Watermill's DelayOnError", outside: sees(", and remove DelayOnError: policies have delays")},
}

// find returns what a function means outside or inside of the retry middleware; nil if there is nothing wrong.
func find(name string, outside bool) *OrderError {
	for _, r := range rules {
		e := r.inside
		if outside {
			e = r.outside
		}
		if e == nil || !strings.HasPrefix(name, r.prefix) {
			continue
		}

		return &OrderError{Middleware: r.middleware, Problem: e.problem, Remedy: e.remedy, level: e.level}
	}

	return nil
}

// onStockOnly tells whether a mistake is none with the plug's own subscriber.
func onStockOnly(name string) bool {
	for _, r := range rules {
		if strings.HasPrefix(name, r.prefix) {
			return r.inside != nil && r.inside.stock
		}
	}

	return false
}

// IsRetry tells whether a function is a retry middleware of this module, whatever plug it belongs to.
func IsRetry(name string) bool {
	for _, prefix := range []string{"amqpretry.", "amqpretry/amqpretryv3.", "internal/plug.", "middleware.Retry.", "middleware.Poison."} {
		if strings.HasPrefix(name, module+prefix) {
			return true
		}
	}

	return false
}

// IsKnown tells whether a function is a middleware of Watermill or of this module, which are known not to have the retry
// middleware inside of them.
func IsKnown(name string) bool {
	return strings.HasPrefix(name, watermillPrefix) || strings.HasPrefix(name, module+"middleware/")
}

// CheckOrder finds the mistakes in a chain of middlewares, given by the names of their functions, outermost first. What is
// before the first retry middleware is outside, and the others are inside: between those of two plugs they may be right.
func CheckOrder(names []string, stock bool) []*OrderError {
	first := slices.IndexFunc(names, IsRetry)
	if first < 0 {
		return nil
	}

	var found []*OrderError
	for i, name := range names {
		e := find(name, i < first)
		if e == nil || i > first && !stock && onStockOnly(name) {
			continue
		}
		found = append(found, e)
	}

	return found
}
