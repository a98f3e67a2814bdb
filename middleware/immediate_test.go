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

// Every try sees the message as it arrived, with a live context, whatever the one before has done
// to it.
func TestImmediateTries(t *testing.T) {
	d := immediately(2)

	var attempts []retry.Attempt
	msg := messageOf(d)
	msg.Metadata["key"] = "value"
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
	})(msg)
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
	retried(t, d, calling(func(*message.Message) error {
		if calls++; calls < 3 {
			return errBoom
		}

		return nil
	}))
	assert.Equal(t, 3, calls)
	assert.Equal(t, 1, d.succeeded)
	assert.Empty(t, d.settled)
}

// What allows no further call in this process.
func TestNoImmediateTry(t *testing.T) {
	as := func(err error) func(*delivery, *message.Message) error {
		return func(*delivery, *message.Message) error { return err }
	}
	for name, test := range map[string]struct {
		prepare func(*delivery)
		handler func(*delivery, *message.Message) error
		want    retry.Verdict
	}{
		"after a wait": {func(d *delivery) { d.state.Count = 1 }, as(errBoom), again(2, 5*time.Second)},
		"the handler acked": {nil, func(_ *delivery, msg *message.Message) error {
			msg.Ack()
			return errBoom
		}, again(1, time.Second)},
		"the handler nacked": {nil, func(_ *delivery, msg *message.Message) error {
			msg.Nack()
			return errBoom
		}, again(1, time.Second)},
		"permanent":           {nil, as(retry.Permanent(errBoom)), dead("permanent")},
		"the policy has none": {func(d *delivery) { d.policy.Immediate = 0 }, as(errBoom), again(1, time.Second)},
		"expired meanwhile": {
			func(d *delivery) { d.state.Deadline = time.Now().Add(time.Hour) },
			func(d *delivery, _ *message.Message) error { d.state.Deadline = time.Now(); return errBoom },
			dead("expired"),
		},
		"a shutdown": {nil, func(d *delivery, _ *message.Message) error { d.withdrawn = true; return errBoom },
			retry.Verdict{Action: retry.ActionRequeue}},
		"a shutdown that begins after the failure": {func(d *delivery) {
			d.under(&engine.Engine{ErrorText: func(error) string { d.withdrawn = true; return "redacted" }})
		}, as(errBoom), retry.Verdict{}},
		"a goroutine that ends": {nil, func(*delivery, *message.Message) error { runtime.Goexit(); return nil },
			again(1, time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			d, calls := immediately(3), 0
			if test.prepare != nil {
				test.prepare(d)
			}
			var err error
			atGoexit(func(msg *message.Message) (_ []*message.Message, _ error) {
				_, err = retrying(calling(func(msg *message.Message) error {
					calls++
					return test.handler(d, msg)
				}))(msg)

				return nil, err
			}, messageOf(d))

			assert.Equal(t, 1, calls)
			if test.want == (retry.Verdict{}) {
				assert.Empty(t, d.settled)
				require.EqualError(t, err, "redacted", "and logged")
			} else {
				assert.Equal(t, test.want, settlement(t, d).Verdict)
			}
			if d.withdrawn {
				require.ErrorIs(t, err, errBoom, "nacked")
			} else {
				require.NoError(t, err)
			}
		})
	}
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
			retried(t, d, calling(func(*message.Message) error {
				t.Error("called")
				return nil
			}))

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

	// Due, because there is nothing to wait in, or the wait is over; or not due, and no later than
	// the policy allows.
	long := config.Policy{Delays: twoRetries.Delays, MaxPostpone: time.Hour}.WithDefaults()
	due, postponed := retry.Verdict{}, retry.Verdict{Action: retry.ActionPostpone, Delay: 5 * time.Second,
		NotBefore: past.Add(time.Hour)}
	old := past.Add(-50 * time.Hour)
	for name, test := range map[string]struct {
		policy config.Policy
		state  wire.State
		want   retry.Verdict
	}{
		"no retries":                  {noRetries, wire.State{NotBefore: soon, Since: past}, due},
		"where nothing can wait":      {noRetries, wire.State{NotBefore: soon}, due},
		"some milliseconds of a wait": {twoRetries, wire.State{NotBefore: past, Since: past}, due},
		"forged": {long, wire.State{NotBefore: soon.AddDate(900, 0, 0), Since: old, LastFailure: past},
			postponed},
		"of a policy that allowed more": {long, wire.State{NotBefore: past.Add(2 * time.Hour), Since: old,
			LastFailure: past}, postponed},
		"of an old message that failed just now": {long, wire.State{NotBefore: past.Add(time.Hour), Since: old,
			LastFailure: past}, postponed},
		"it would expire before it is due": {twoRetries, wire.State{NotBefore: soon, Since: past, Deadline: soon},
			dead("expired")},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDelivery()
			d.policy, d.state = test.policy, test.state
			retried(t, d, failing(nil))
			if test.want == due {
				assert.Equal(t, 1, d.succeeded)
			} else {
				assert.Equal(t, test.want, settlement(t, d).Verdict)
			}
		})
	}
}

// The decision function outranks all but bounds and shutdowns.
func TestDecisionFunction(t *testing.T) {
	another := errors.New("another")

	as := func(mark func(error) error) func(retry.Failure) error {
		return func(f retry.Failure) error { return mark(f.Err) }
	}
	for name, test := range map[string]struct {
		decide   func(retry.Failure) error
		err      error
		failures int
		want     retry.Verdict
		text     string
	}{
		"says nothing": {func(retry.Failure) error { return nil }, errBoom, 0, again(1, time.Second), "boom"},
		"says the same": {func(f retry.Failure) error { return f.Err }, retry.Permanent(errBoom), 0,
			dead("permanent"), "boom"},
		"permanent":            {as(retry.Permanent), errBoom, 0, dead("permanent"), "boom"},
		"transient":            {as(retry.Transient), retry.Permanent(errBoom), 0, again(1, time.Second), "boom"},
		"transient, none left": {as(retry.Transient), errBoom, 2, dead("exhausted"), "boom"},
		"drop":                 {as(retry.Drop), errBoom, 0, retry.Verdict{Action: retry.ActionDrop}, "boom"},
		"retry after": {as(func(err error) error { return retry.RetryAfter(4*time.Second, err) }), errBoom, 0,
			again(1, 5*time.Second), "boom"},
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
			retried(t, d.under(&engine.Engine{Decide: test.decide}), failing(test.err))

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
			d := newDelivery().under(&engine.Engine{Logger: logger, PayloadText: test.text})
			retried(t, d, failing(errBoom))
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
