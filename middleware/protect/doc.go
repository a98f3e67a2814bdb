// Package protect has middlewares that keep a service from making things worse: for what it depends
// on (CircuitBreaker, RateLimit), and for those who see its effects (Deduplicator, Transactional).
// They belong right inside of the retry middleware, because what they do to a message is what the
// retry middleware can do: postpone it, without using up an attempt.
//
//	          ┌ CircuitBreaker, RateLimit, Deduplicator ┐
//	Retry ──► │ may the handler be called now?          │ ──► Watermill's middlewares ──► handler
//	          └ no: Postpone ◄──────────────────────────┘
//
// Each handler that one of them wraps gets a breaker, a limit, a memory of its own: a middleware
// that is added to a router keeps its handlers apart. By default all of it is in this process, and
// instances of a service know nothing of each other. With a store (package store) they share it.
//
// Under a policy without retries there is nothing to wait in, and of the messages of others nothing
// is known: docs/how-to/protect-a-dependency.md says what each of them does then, with the order of
// middlewares and every bound.
package protect
