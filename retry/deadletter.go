package retry

import (
	"context"
	"time"
)

// DeadLetter is what a dead letter tells of its failure, to a handler that is fed from a
// dead-letter queue. Everything in it comes from headers of the message, which anybody who can
// publish can write: it is for people to read and for programs to count.
//
// Of a message that the broker itself has dead-lettered it has the Reason, the Queue, LastFailure,
// and where the message came from. Of one that Spring AMQP, MassTransit, NServiceBus or Watermill's
// PoisonQueue has dead-lettered it has the Error and more that they write. Of one that somebody has
// put there by hand it has the Queue only.
type DeadLetter struct {
	// Reason why it was dead-lettered; empty if that is not known.
	Reason Reason
	// Error is the text of the last error, at most 2 KiB, and ErrorType its type.
	Error     string
	ErrorType string

	// Queue whose dead letter it is, and the Topic, the Handler and the Host where it failed last.
	Queue   string
	Topic   string
	Handler string
	Host    string

	// Calls is how often a handler was called over all lives of the message, Replays how often it
	// came back from the dead-letter queue.
	Calls   int
	Replays int
	// FirstFailure and LastFailure are when it failed. History has the first failed call and the
	// last nine.
	FirstFailure time.Time
	LastFailure  time.Time
	History      []FailedCall
	// Since is where its age counted from, Deadline when it expired or would have; zero if there
	// was none.
	Since    time.Time
	Deadline time.Time

	// Exchange and RoutingKey that it first came by; the default exchange is empty. Expiration and
	// UserID as the publisher had set them.
	Exchange   string
	RoutingKey string
	Expiration string
	UserID     string
	// Trace is the W3C traceparent of the last call of its handler, if package tracing has traced
	// it. Empty else.
	Trace string

	// Removed names those of the message's own headers that left no room for these (reason
	// too-large); empty else.
	Removed string
}

type deadLetterKey struct{}

// NewDeadLetterContext returns a context that carries l.
func NewDeadLetterContext(ctx context.Context, l DeadLetter) context.Context {
	return context.WithValue(ctx, deadLetterKey{}, l)
}

// DeadLetterFromContext tells of the failure of the dead letter whose context ctx is. It is false
// for messages that do not come from a dead-letter queue.
func DeadLetterFromContext(ctx context.Context) (DeadLetter, bool) {
	l, ok := ctx.Value(deadLetterKey{}).(DeadLetter)
	return l, ok
}
