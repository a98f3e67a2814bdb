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

// sleep ends early with ctx, and then returns the cause.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}

	return context.Cause(ctx)
}
