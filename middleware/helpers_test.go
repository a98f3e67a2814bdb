package middleware_test

import (
	"errors"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/retry"
)

var errBoom = errors.New("boom")

// opinion is an error that decides for itself.
type opinion bool

func (opinion) Error() string     { return "an opinion" }
func (o opinion) Retryable() bool { return bool(o) }

var (
	twoRetries = config.Policy{Delays: []time.Duration{time.Second, 5 * time.Second}}.WithDefaults()
	noRetries  = config.Policy{Mode: config.ModeDeadLetter}.WithDefaults()
)

func again(count int, delay time.Duration) retry.Verdict {
	return retry.Verdict{Action: retry.ActionRetry, Count: count, Delay: delay}
}

func dead(reason retry.Reason) retry.Verdict {
	return retry.Verdict{Action: retry.ActionDeadLetter, Reason: reason}
}
