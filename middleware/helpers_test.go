package middleware_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/retry"
)

var errBoom = errors.New("boom")

// opinion is an error that decides for itself.
type opinion bool

func (opinion) Error() string     { return "an opinion" }
func (o opinion) Retryable() bool { return bool(o) }

// calling is a handler without outputs.
func calling(h func(*message.Message) error) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) { return nil, h(msg) }
}

func retrying(h message.HandlerFunc) message.HandlerFunc { return middleware.Retry{}.Middleware(h) }

// retried handles the message of a delivery. The router acknowledges it, as the verdict is on it.
func retried(t *testing.T, d *delivery, h message.HandlerFunc) *message.Message {
	t.Helper()
	return handled(t, d, retrying(h))
}

// poisoned is retried with the other middleware.
func poisoned(t *testing.T, d *delivery, h message.HandlerFunc) *message.Message {
	t.Helper()
	return handled(t, d, middleware.Poison{}.Middleware(h))
}

func handled(t *testing.T, d *delivery, h message.HandlerFunc) *message.Message {
	t.Helper()
	msg := messageOf(d)
	produced, err := h(msg)
	require.NoError(t, err)
	if len(d.settled) > 0 {
		assert.Empty(t, produced, "outputs of a failed handler")
	}

	return msg
}

// atGoexit calls a handler that ends its goroutine, and tells whether it has returned.
func atGoexit(h message.HandlerFunc, msg *message.Message) (returned bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = h(msg)
		returned = true
	}()
	<-done

	return returned
}

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
