package protect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/retry"
)

// PostponeOn returns a middleware that postpones messages whose handler returns an error of these:
// it waits for d or more, and comes back without having used up an attempt. It makes other people's
// protection fit for retries, such as one breaker for several handlers, or the one in a client:
//
//	router.AddMiddleware(
//		retrier.Middleware,
//		protect.PostponeOn(30*time.Second, config.Is(gobreaker.ErrOpenState), config.Is(gobreaker.ErrTooManyRequests)),
//		wmmiddleware.NewCircuitBreaker(settings).Middleware,
//	)
//
// An error that the handler has marked (Permanent, Drop, Transient, RetryAfter, Postpone) is left
// as it is. In an immediate try, when one before has failed, it ends the attempt, as
// [retry.RetryAfter] does.
func PostponeOn(d time.Duration, errs ...config.ErrorMatch) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			ctx := msg.Context()
			produced, err := h(msg)
			if err != nil && isMeant(err, errs) {
				err = postponed(ctx, err, d)
			}

			return produced, err
		}
	}
}

// postponed is an error that postpones, and says why. An attempt of which a try has failed already
// is a failed one: postponed without end, a message that fails every time would never come to its
// last attempt.
func postponed(ctx context.Context, why error, d time.Duration) error {
	if attempt, ok := retry.AttemptFromContext(ctx); ok && attempt.Try > 1 {
		return retry.RetryAfter(d, fmt.Errorf("%w: not tried again at once after: %s", why, attempt.LastError))
	}

	return fmt.Errorf("%w: %w", why, retry.Postpone(d))
}

// isMeant tells whether an error is one of these, and has no mark of its own.
func isMeant(err error, errs []config.ErrorMatch) bool {
	// An error that is a nil pointer panics easily. What it is cannot be told then, and it is not
	// for us to make it a panic.
	defer func() { _ = recover() }()

	isMark := func(mark error) bool { return errors.Is(err, mark) }

	return slices.ContainsFunc(errs, func(m config.ErrorMatch) bool {
		return m.Match(err)
	}) && !slices.ContainsFunc(marks, isMark)
}

var marks = []error{
	retry.ErrPermanent, retry.ErrDrop, retry.ErrTransient, retry.ErrRetryAfter, retry.ErrPostponed,
}

// postponable tells whether a message can be postponed: it is the retrier's, and its policy has
// retries to wait in.
func postponable(ctx context.Context) (retry.Attempt, bool) {
	attempt, ours := retry.AttemptFromContext(ctx)

	return attempt, ours && attempt.MaxRetries > 0
}
