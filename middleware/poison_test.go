package middleware_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

func TestPoisonAlone(t *testing.T) {
	for name, policy := range map[string]config.Policy{
		"delays": twoRetries,
		"backoff": config.Policy{Retries: 9, Backoff: config.Backoff{Kind: config.BackoffConstant,
			Initial: time.Second}}.WithDefaults(),
		"none":     noRetries,
		"the zero": config.Policy{}.WithDefaults(),
	} {
		t.Run(name, func(t *testing.T) {
			d := newDelivery()
			d.policy = policy
			poisoned(t, d, failing(errBoom))

			s := settlement(t, d)
			assert.Equal(t, dead("exhausted"), s.Verdict)
			assert.Equal(t, 1, s.State.Attempts)
			assert.Equal(t, "boom", s.State.Error)
		})
	}

	t.Run("drop", func(t *testing.T) {
		d := newDelivery()
		poisoned(t, d, failing(retry.Drop(errBoom)))
		assert.Equal(t, retry.Verdict{Action: retry.ActionDrop}, settlement(t, d).Verdict)
	})

	t.Run("success", func(t *testing.T) {
		d := newDelivery()
		poisoned(t, d, failing(nil))
		assert.Empty(t, d.settled)
	})
}

// What fails outside of a handler has no message, and the consumer judges it.
func TestJudge(t *testing.T) {
	d := newDelivery()
	d.state.Attempts = 4

	s := (&engine.Engine{Host: "host"}).Judge(d, retry.Failure{Class: retry.ClassUndecodable, Err: errBoom,
		Topic: "topic"})
	assert.Equal(t, dead("undecodable"), s.Verdict)
	assert.Equal(t, 4, s.State.Attempts, "no handler was called")
	assert.Equal(t, "topic", s.State.Topic)
	assert.Equal(t, "boom", s.State.Error)
	assert.Equal(t, retry.ReasonUndecodable, s.State.History[0].Reason)

	s = (&engine.Engine{}).Judge(d, retry.Failure{Class: retry.ClassCrashed, Topic: "topic"})
	assert.Equal(t, again(1, time.Second), s.Verdict)
	assert.Equal(t, 5, s.State.Attempts)
	assert.Empty(t, s.State.Error, "a failure may come without an error")
	assert.Equal(t, retry.ReasonCrashed, s.State.History[0].Reason)

	s = (&engine.Engine{}).Judge(d, retry.Failure{Class: retry.ClassUnpublishable, Err: errBoom, Message: messageOf(d)})
	assert.Equal(t, again(1, time.Second), s.Verdict)
	assert.Equal(t, retry.ReasonUnpublishable, s.State.History[0].Reason)
}

// shy panics when it is asked for its text.
type shy struct{}

func (shy) Error() string { panic("do not ask") }

func TestErrorText(t *testing.T) {
	lost := "(the error's text is lost: it panicked with string)"
	for name, test := range map[string]struct {
		errorText func(error) string
		err       error
		want      string
	}{
		"the error's own": {nil, errBoom, "boom"},
		"redacted":        {func(error) string { return "redacted" }, errBoom, "redacted"},
		"given the real error": {func(err error) string { return fmt.Sprint(errors.Is(err, errBoom)) },
			fmt.Errorf("x: %w", errBoom), "true"},
		"panics":           {func(error) string { panic("oh") }, errBoom, lost},
		"the error panics": {nil, shy{}, lost},
		"long":             {nil, errors.New(strings.Repeat("x", 1<<20)), strings.Repeat("x", 2045) + "…"},
		"long, redacted": {func(error) string { return strings.Repeat("y", 1<<20) }, errBoom,
			strings.Repeat("y", 2045) + "…"},
		"invalid": {nil, errors.New("a\xffb"), "a\uFFFDb"},
	} {
		t.Run(name, func(t *testing.T) {
			logger := watermill.NewCaptureLogger()
			d := newDelivery().under(&engine.Engine{Logger: logger, ErrorText: test.errorText})
			retried(t, d, failing(test.err))
			assert.Equal(t, test.want, settlement(t, d).State.Error)
			assert.NotEmpty(t, settlement(t, d).State.ErrorType)

			logged := logger.Captured()[watermill.InfoLogLevel]
			require.Len(t, logged, 1)
			assert.Equal(t, test.want, logged[0].Fields["error"], "no log line shows what the text hides")
		})
	}
}

func TestLogsShowTheRedactedText(t *testing.T) {
	for name, err := range map[string]error{"dead letter": retry.Permanent(errBoom), "drop": retry.Drop(errBoom)} {
		t.Run(name, func(t *testing.T) {
			logger := watermill.NewCaptureLogger()
			text := func(error) string { return "redacted" }
			poisoned(t, newDelivery().under(&engine.Engine{Logger: logger, ErrorText: text}), failing(err))

			logged := logger.Captured()[watermill.ErrorLogLevel]
			require.Len(t, logged, 1)
			assert.EqualError(t, logged[0].Err, "redacted")
			assert.Equal(t, "uuid", logged[0].Fields["message_uuid"])
			assert.Equal(t, "orders", logged[0].Fields["queue"])
			assert.Equal(t, 1, logged[0].Fields["calls"])
		})
	}
}

func TestNobodyHasToListen(t *testing.T) {
	logger := watermill.NewCaptureLogger()
	d := newDelivery().under(&engine.Engine{Logger: logger})
	poisoned(t, d, failing(errBoom))

	assert.NotPanics(t, func() {
		settlement(t, d).Done(nil)
		(&engine.Settlement{Verdict: dead("exhausted")}).Done(nil)
	})
	assert.Len(t, logger.Captured()[watermill.ErrorLogLevel], 1, "the dead letter itself")
}

func TestAttemptFromContext(t *testing.T) {
	first := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	d := newDelivery()
	read := func(d *delivery) retry.Attempt {
		attempt, ok := retry.AttemptFromContext(messageOf(d).Context())
		assert.True(t, ok)

		return attempt
	}
	assert.Equal(t, retry.Attempt{Number: 1, Try: 1, MaxRetries: 2, Queue: "orders"}, read(d))

	deadline := time.Now().Add(time.Hour)
	history := []retry.FailedCall{{Number: 9, At: first, Error: "boom"}}
	d.state = wire.State{
		Count: 1, Attempts: 9, Replays: 3, Since: first, Deadline: deadline, FirstFailure: first, Error: "boom",
		History: history,
	}
	assert.Equal(t, retry.Attempt{
		Number: 2, Try: 1, Failures: 1, MaxRetries: 2, Calls: 9, Replays: 3, Since: first, Deadline: deadline,
		FirstFailure: first, LastError: "boom", History: history, Queue: "orders",
	}, read(d))

	d.state.Count = 2
	assert.True(t, read(d).Last)

	d.policy = config.Policy{Delays: []time.Duration{time.Second, time.Hour}}.WithDefaults()
	jitter, drop := d.policy, d.policy
	jitter.Jitter, drop.OnExpiry = 0.9, config.ExpiryDrop
	for name, test := range map[string]struct {
		policy   config.Policy
		failures int
		deadline time.Duration
		last     bool
	}{
		"the next wait ends before the deadline": {d.policy, 0, time.Minute, false},
		"the next wait outlives it":              {d.policy, 1, time.Minute, true},
		"it is dropped then":                     {drop, 1, time.Minute, true},
		"jitter may make it in time":             {jitter, 1, 30 * time.Minute, false},
		"jitter cannot":                          {jitter, 1, time.Minute, true},
	} {
		other := newDelivery()
		other.policy, other.state = test.policy,
			wire.State{Count: test.failures, Deadline: time.Now().Add(test.deadline)}
		assert.Equal(t, test.last, read(other).Last, name)
	}

	d.policy = config.Policy{Mode: config.ModeDeadLetter, Immediate: 1}.WithDefaults()
	for tries, last := range []bool{false, true} {
		d.state = wire.State{Tries: tries}
		assert.Equal(t, tries+1, read(d).Try)
		assert.Equal(t, last, read(d).Last)
	}

	d.policy = config.Policy{Mode: config.ModeOff}
	attempt, ok := retry.AttemptFromContext(messageOf(d).Context())
	assert.False(t, ok)
	assert.Zero(t, attempt)

	_, ok = retry.AttemptFromContext(message.NewMessage("", nil).Context())
	assert.False(t, ok)
}
