package engine

import (
	"context"

	"github.com/amqpretry/watermill-retry/internal/contextkey"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// DeadLetterOf is what the headers of a dead letter say.
func DeadLetterOf(s wire.State) retry.DeadLetter {
	return retry.DeadLetter{
		Reason: s.Reason, Error: s.Error, ErrorType: s.ErrorType,
		Queue: s.Queue, Topic: s.Topic, Handler: s.Handler, Host: s.Host,
		Calls: s.Attempts, Replays: s.Replays, FirstFailure: s.FirstFailure, LastFailure: s.LastFailure,
		History: s.History,
		Since:   s.Since, Deadline: s.Deadline,
		Exchange: s.Arrival.Exchange, RoutingKey: s.Arrival.RoutingKey, Expiration: s.Arrival.Expiration,
		UserID: s.Arrival.UserID,
		Trace:  s.Trace, Removed: s.Removed,
	}
}

// WithDeadLetter returns a context that carries what a dead letter tells of its failure.
func WithDeadLetter(ctx context.Context, l retry.DeadLetter) context.Context {
	return context.WithValue(ctx, contextkey.DeadLetter{}, l)
}
