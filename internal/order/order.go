// Package order knows which middlewares of a router keep the retry middleware from its work, by the
// names of their functions: the router offers no other way to tell which it has.
package order

import (
	"slices"
	"strings"
)

// Level says how bad a mistake is.
type Level int

const (
	// Possible can be what somebody wants, so it is logged and never refused.
	Possible Level = iota
	// Wrong is of no use where it is.
	Wrong
	// Loses loses messages or makes them spin: a subscription that meets it stops.
	Loses
)

// Mistake is a middleware in a wrong place.
type Mistake struct {
	Level           Level
	Middleware      string // such as "Watermill's Retry"
	Problem, Remedy string
	// StockOnly tells that it is none on the retrier's own subscriber.
	StockOnly bool
}

// Find returns what a function means outside or inside of the retry middleware; nil if there is
// nothing wrong.
func Find(name string, outside bool) *Mistake {
	for _, r := range rules {
		e := r.inside
		if outside {
			e = r.outside
		}
		if e == nil || !strings.HasPrefix(name, r.prefix) {
			continue
		}

		return &Mistake{Level: e.level, Middleware: r.middleware, Problem: e.problem, Remedy: e.remedy,
			StockOnly: e.stock}
	}

	return nil
}

// Outside finds the mistakes in a stack of function names, innermost first, as far as the router.
func Outside(stack []string) []*Mistake {
	var (
		found []*Mistake
		seen  = map[string]bool{}
	)
	for _, name := range stack {
		if name == routerName {
			return found
		}
		if m := Find(name, true); m != nil && !seen[m.Middleware] {
			seen[m.Middleware] = true
			found = append(found, m)
		}
	}

	return found
}

// Check finds the mistakes in a chain of middlewares, given by the names of their functions,
// outermost first. What is before the first retry middleware is outside, and the others are inside:
// between those of two retriers they may be right. stock tells that the chain is fed by a stock
// subscriber.
func Check(names []string, stock bool) []*Mistake {
	first := slices.IndexFunc(names, IsRetry)
	if first < 0 {
		return nil
	}

	var found []*Mistake
	for i, name := range names {
		m := Find(name, i < first)
		if m == nil || i > first && !stock && m.StockOnly {
			continue
		}
		found = append(found, m)
	}

	return found
}

// IsRetry tells whether a function is a retry middleware of this module, whatever retrier it
// belongs to.
func IsRetry(name string) bool {
	for _, prefix := range []string{"amqpretry.", "amqpretry/amqpv2.", "amqpretry/amqpv3.", "middleware.Retry.",
		"middleware.Poison."} {
		if strings.HasPrefix(name, module+prefix) {
			return true
		}
	}

	return false
}

// IsKnown tells whether a function is a middleware of Watermill or of this module, which are known
// not to have the retry middleware inside of them.
func IsKnown(name string) bool {
	return strings.HasPrefix(name, watermillPrefix) || strings.HasPrefix(name, module+"middleware/")
}
