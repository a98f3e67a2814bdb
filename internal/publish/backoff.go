package publish

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// growing are the pauses between publishes of what the broker does not take.
func growing() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: 50 * time.Millisecond, MaxInterval: 5 * time.Second, Multiplier: 2,
		RandomizationFactor: 0.3,
	}
}

// untilTaken calls publish until it succeeds or its error is a backoff.Permanent, with growing pauses between the calls.
// When ctx ends it returns the cause.
func untilTaken(ctx context.Context, publish func() error) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, publish() },
		backoff.WithMaxElapsedTime(0), // no limit
		backoff.WithBackOff(growing()))

	return err
}
