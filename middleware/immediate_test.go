package middleware_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/retry"
)

func immediately(n int) *delivery {
	d := newDelivery()
	d.policy = config.Policy{Delays: twoRetries.Delays, Immediate: n}.WithDefaults()

	return d
}

func retrying(h message.HandlerFunc) message.HandlerFunc {
	return middleware.Retry{}.Middleware(h)
}

// Every try sees the message as it arrived, with a live context, whatever the one before has done
// to it.
func TestImmediateTries(t *testing.T) {
	d := immediately(2)

	var attempts []retry.Attempt
	_, err := retrying(func(msg *message.Message) ([]*message.Message, error) {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		attempts = append(attempts, attempt)

		require.NoError(t, msg.Context().Err())
		assert.Equal(t, "payload", string(msg.Payload))
		assert.Equal(t, message.Metadata{"key": "value"}, msg.Metadata)
		assert.Equal(t, "uuid", msg.UUID)

		cancelled, cancel := context.WithCancel(msg.Context())
		cancel()
		msg.SetContext(cancelled)
		msg.Payload[0] = 'X'
		msg.Metadata["key"], msg.Metadata["more"], msg.UUID = "other", "", "another"

		if len(attempts) == 2 {
			panic("the second")
		}

		return nil, errBoom
	})(func() *message.Message {
		msg := messageOf(d)
		msg.Metadata["key"] = "value"
		return msg
	}())
	require.NoError(t, err)

	require.Len(t, attempts, 3)
	for i, a := range attempts {
		assert.Equal(t, 1, a.Number, "one attempt")
		assert.Equal(t, i+1, a.Try)
		assert.Equal(t, i, a.Calls)
		assert.Len(t, a.History, i)
	}

	s := settlement(t, d)
	assert.Equal(t, again(1, time.Second), s.Verdict)
	assert.Equal(t, 3, s.State.Attempts)
	assert.Equal(t, 1, s.State.Count)
	assert.Zero(t, s.State.Tries)
	require.Len(t, s.State.History, 3)
	assert.Equal(t, []retry.Reason{"", "panic", ""}, []retry.Reason{s.State.History[0].Reason,
		s.State.History[1].Reason, s.State.History[2].Reason})
}

func TestImmediateTrySucceeds(t *testing.T) {
	d, calls := immediately(5), 0
	_, err := retrying(func(*message.Message) ([]*message.Message, error) {
		if calls++; calls < 3 {
			return nil, errBoom
		}

		return nil, nil
	})(messageOf(d))

	require.NoError(t, err)
	assert.Equal(t, 3, calls)
	assert.Equal(t, 1, d.succeeded)
	assert.Empty(t, d.settled)
}

// What allows no further call in this process.
func TestNoImmediateTry(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*delivery)
		handler func(*delivery, *message.Message) error
		want    retry.Verdict
	}{
		"after a wait": {func(d *delivery) {
			d.state.Count = 1
		}, func(*delivery, *message.Message) error { return errBoom }, again(2, 5*time.Second)},
		"the handler acked": {func(*delivery) {}, func(_ *delivery, msg *message.Message) error {
			msg.Ack()
			return errBoom
		}, again(1, time.Second)},
		"the handler nacked": {func(*delivery) {}, func(_ *delivery, msg *message.Message) error {
			msg.Nack()
			return errBoom
		}, again(1, time.Second)},
		"permanent": {func(*delivery) {}, func(*delivery, *message.Message) error {
			return retry.Permanent(errBoom)
		}, dead("permanent")},
		"the policy has none": {func(d *delivery) {
			d.policy.Immediate = 0
		}, func(*delivery, *message.Message) error { return errBoom }, again(1, time.Second)},
		"expired meanwhile": {
			func(d *delivery) { d.state.Deadline = time.Now().Add(time.Hour) },
			func(d *delivery, _ *message.Message) error { d.state.Deadline = time.Now(); return errBoom },
			dead("expired"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, calls := immediately(3), 0
			test.prepare(d)
			_, err := retrying(func(msg *message.Message) ([]*message.Message, error) {
				calls++
				return nil, test.handler(d, msg)
			})(messageOf(d))

			require.NoError(t, err)
			assert.Equal(t, 1, calls)
			assert.Equal(t, test.want, settlement(t, d).Verdict)
		})
	}

	t.Run("a shutdown", func(t *testing.T) {
		d, calls := immediately(3), 0
		_, err := retrying(func(*message.Message) ([]*message.Message, error) {
			calls++
			d.withdrawn = true

			return nil, errBoom
		})(messageOf(d))

		require.ErrorIs(t, err, errBoom, "nacked")
		assert.Equal(t, 1, calls)
		assert.Equal(t, retry.ActionRequeue, settlement(t, d).Action)
	})

	t.Run("a shutdown that begins after the failure", func(t *testing.T) {
		d, calls := immediately(3), 0
		d.under(&engine.Engine{ErrorText: func(error) string { d.withdrawn = true; return "redacted" }})
		_, err := retrying(func(*message.Message) ([]*message.Message, error) {
			calls++

			return nil, errBoom
		})(messageOf(d))

		require.ErrorIs(t, err, errBoom, "nacked")
		require.EqualError(t, err, "redacted", "and logged")
		assert.Equal(t, 1, calls)
		assert.Empty(t, d.settled)
	})

	t.Run("a goroutine that ends", func(t *testing.T) {
		d, calls := immediately(3), 0
		msg := messageOf(d)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = retrying(func(*message.Message) ([]*message.Message, error) {
				calls++
				runtime.Goexit()

				return nil, nil
			})(msg)
		}()
		<-done

		assert.Equal(t, 1, calls)
		assert.Equal(t, again(1, time.Second), settlement(t, d).Verdict)
	})
}

// What is looked at before the handler is called.
func TestBeforeTheHandler(t *testing.T) {
	soon, past := time.Now().Add(time.Hour), time.Now().Add(-time.Second)

	for name, test := range map[string]struct {
		state  wire.State
		policy config.Policy
		want   retry.Verdict
		after  wire.State
	}{
		"expired": {
			wire.State{Count: 1, Attempts: 3, Error: "before", Deadline: past}, twoRetries, dead("expired"),
			wire.State{Count: -1, Attempts: 3, Error: "before", Deadline: past, Reason: "expired"},
		},
		"expired, dropped": {
			wire.State{Deadline: past}, config.Policy{OnExpiry: config.ExpiryDrop}.WithDefaults(),
			retry.Verdict{Action: retry.ActionDrop, Reason: "expired"}, wire.State{Deadline: past},
		},
		"not due": {
			wire.State{Count: 1, Attempts: 3, Error: "before", NotBefore: soon, Since: past}, twoRetries,
			retry.Verdict{Action: retry.ActionPostpone, Count: 1, Delay: 5 * time.Second, NotBefore: soon},
			wire.State{Count: 1, Attempts: 3, Error: "before", NotBefore: soon, Since: past, Delay: "5s"},
		},
		"expired before it is due": {
			wire.State{NotBefore: soon, Deadline: past}, twoRetries, dead("expired"),
			wire.State{Count: -1, Deadline: past, Reason: "expired"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDelivery()
			d.policy, d.state = test.policy, test.state
			_, err := retrying(func(*message.Message) ([]*message.Message, error) {
				t.Error("called")
				return nil, nil
			})(messageOf(d))
			require.NoError(t, err)

			s := settlement(t, d)
			assert.Equal(t, test.want, s.Verdict)
			if test.want.Action == retry.ActionPostpone {
				assert.Empty(t, s.State.History, "nothing has happened")
				assert.Zero(t, s.State.LastFailure)
			} else {
				require.Len(t, s.State.History, 1)
				assert.Contains(t, s.State.History[0].Error, "expired at")
				assert.Equal(t, retry.ReasonExpired, s.State.History[0].Reason)
				if test.after.Error == "" {
					test.after.Error, test.after.ErrorType = s.State.History[0].Error, s.State.ErrorType
				}
			}
			s.State.History, s.State.FirstFailure, s.State.LastFailure = nil, time.Time{}, time.Time{}
			assert.Equal(t, test.after, s.State)
		})
	}

	// Due, because there is nothing to wait in, or the wait is over.
	long := config.Policy{Delays: twoRetries.Delays, MaxPostpone: time.Hour}.WithDefaults()
	for name, test := range map[string]struct {
		policy config.Policy
		state  wire.State
	}{
		"no retries": {config.Policy{Mode: config.ModeDeadLetter}.WithDefaults(),
			wire.State{NotBefore: soon, Since: past}},
		"some milliseconds of a wait": {twoRetries, wire.State{NotBefore: past, Since: past}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDelivery()
			d.policy, d.state = test.policy, test.state
			_, err := retrying(failing(nil))(messageOf(d))
			require.NoError(t, err)
			assert.Equal(t, 1, d.succeeded)
		})
	}
	for name, notBefore := range map[string]time.Time{"forged": soon.AddDate(900, 0, 0), "of a policy that allowed " +
		"more": past.Add(2 * time.Hour)} {
		t.Run("no later than the policy allows: "+name, func(t *testing.T) {
			d := newDelivery()
			d.policy, d.state = long, wire.State{NotBefore: notBefore, Since: past.Add(-50 * time.Hour),
				LastFailure: past}
			_, err := retrying(failing(nil))(messageOf(d))
			require.NoError(t, err)
			assert.Equal(t, past.Add(time.Hour), settlement(t, d).NotBefore)
		})
	}
	t.Run("not due, of an old message that failed just now", func(t *testing.T) {
		d := newDelivery()
		d.policy, d.state = long, wire.State{NotBefore: past.Add(time.Hour), Since: past.Add(-50 * time.Hour),
			LastFailure: past}
		_, err := retrying(failing(nil))(messageOf(d))
		require.NoError(t, err)
		assert.Equal(t, retry.ActionPostpone, settlement(t, d).Action)
	})
	t.Run("it would expire before it is due", func(t *testing.T) {
		d := newDelivery()
		d.state = wire.State{NotBefore: soon, Since: past, Deadline: soon}
		_, err := retrying(failing(nil))(messageOf(d))
		require.NoError(t, err)
		assert.Equal(t, dead("expired"), settlement(t, d).Verdict)
	})

	t.Run("due, where nothing can wait", func(t *testing.T) {
		d := newDelivery()
		d.policy, d.state.NotBefore = noRetries, soon
		_, err := retrying(failing(nil))(messageOf(d))
		require.NoError(t, err)
		assert.Equal(t, 1, d.succeeded)
	})
}

// The decision function outranks all but bounds and shutdowns.
func TestDecisionFunction(t *testing.T) {
	another := errors.New("another")

	for name, test := range map[string]struct {
		decide   func(retry.Failure) error
		err      error
		failures int
		want     retry.Verdict
		text     string
	}{
		"says nothing": {func(retry.Failure) error { return nil }, errBoom, 0, again(1, time.Second), "boom"},
		"says the same": {func(f retry.Failure) error {
			return f.Err
		}, retry.Permanent(errBoom), 0, dead("permanent"), "boom"},
		"permanent": {func(f retry.Failure) error {
			return retry.Permanent(f.Err)
		}, errBoom, 0, dead("permanent"), "boom"},
		"transient": {func(f retry.Failure) error {
			return retry.Transient(f.Err)
		}, retry.Permanent(errBoom), 0, again(1, time.Second), "boom"},
		"transient, none left": {func(f retry.Failure) error {
			return retry.Transient(f.Err)
		}, errBoom, 2, dead("exhausted"), "boom"},
		"drop": {func(f retry.Failure) error {
			return retry.Drop(f.Err)
		}, errBoom, 0, retry.Verdict{Action: retry.ActionDrop}, "boom"},
		"retry after": {func(f retry.Failure) error {
			return retry.RetryAfter(4*time.Second, f.Err)
		}, errBoom, 0, again(1, 5*time.Second), "boom"},
		"another error": {func(retry.Failure) error { return another }, retry.Permanent(errBoom), 0,
			again(1, time.Second), "another"},
		"panics": {func(retry.Failure) error { panic("x") }, retry.Permanent(errBoom), 0, dead("permanent"), "boom"},
		"by attempt and message": {func(f retry.Failure) error {
			if f.Attempt.Number == 2 && f.Message.UUID == "uuid" && string(f.Payload) == "payload" &&
				f.Attempt.Queue == "orders" && f.Class == retry.ClassError {
				return retry.Permanent(f.Err)
			}

			return f.Err
		}, errBoom, 1, dead("permanent"), "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDelivery()
			d.state.Count = test.failures
			p := &engine.Engine{Decide: test.decide}
			_, err := middleware.Retry{}.Middleware(failing(test.err))(messageOf(d.under(p)))
			require.NoError(t, err)

			s := settlement(t, d)
			assert.Equal(t, test.want, s.Verdict)
			assert.Equal(t, test.text, s.State.Error)
		})
	}

	t.Run("is not asked in a shutdown", func(t *testing.T) {
		d := newDelivery()
		d.withdrawn = true
		p := &engine.Engine{Decide: func(f retry.Failure) error { return retry.Drop(f.Err) }}
		_, err := middleware.Retry{}.Middleware(failing(errBoom))(messageOf(d.under(p)))
		require.ErrorIs(t, err, errBoom)
		assert.Equal(t, retry.ActionRequeue, settlement(t, d).Action)
	})
}

// A payload is logged only as the user's function shows it.
func TestPayloadsInLogs(t *testing.T) {
	for name, test := range map[string]struct {
		text func([]byte) string
		want any
	}{
		"none by default": {nil, nil},
		"as it is shown":  {func(p []byte) string { return string(p[:3]) + "…" }, "pay…"},
		"invalid":         {func([]byte) string { return "\xff" }, "\uFFFD"},
		"panics": {func([]byte) string { panic(1) }, "(the payload's text is lost: PayloadText panicked " +
			"with int)"},
	} {
		t.Run(name, func(t *testing.T) {
			logger := watermill.NewCaptureLogger()
			p := &engine.Engine{Logger: logger, PayloadText: test.text}
			d := newDelivery()
			_, err := middleware.Retry{}.Middleware(failing(errBoom))(messageOf(d.under(p)))
			require.NoError(t, err)
			require.Equal(t, again(1, time.Second), settlement(t, d).Verdict)

			var found []watermill.CapturedMessage
			for _, m := range logger.Captured()[watermill.InfoLogLevel] {
				if m.Msg == "Message failed; it will be retried" {
					found = append(found, m)
				}
			}
			require.Len(t, found, 1)
			assert.Equal(t, test.want, found[0].Fields["payload"])
		})
	}
}
