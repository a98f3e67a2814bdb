package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	pkgerrors "github.com/pkg/errors"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/retry"
)

// delivery plays the broker's side and keeps what it is told.
type delivery struct {
	engine.Progress
	engine *engine.Engine
	policy config.Policy
	state  wire.State
	err    error // what Settle answers

	inside    int
	withdrawn bool
	succeeded int
	settled   []*engine.Settlement
	contexts  []context.Context
}

var _ engine.Delivery = (*delivery)(nil)

func (d *delivery) Engine() *engine.Engine { return d.engine }
func (d *delivery) Queue() string          { return "orders" }
func (d *delivery) Policy() *config.Policy { return &d.policy }
func (d *delivery) State() *wire.State     { return &d.state }
func (d *delivery) Advance(s wire.State)   { d.state = s }
func (d *delivery) Narrow(p config.Policy) { d.policy = p }
func (d *delivery) Enter(string)           { d.inside++ }
func (d *delivery) Leave()                 { d.inside-- }
func (d *delivery) Withdrawn() bool        { return d.withdrawn }
func (d *delivery) NeedsCopy() bool        { return false }
func (d *delivery) Succeeded()             { d.succeeded++ }

func (d *delivery) Settle(ctx context.Context, s *engine.Settlement) error {
	d.contexts = append(d.contexts, ctx)
	if d.err != nil {
		return d.err
	}
	d.settled = append(d.settled, s)

	return nil
}

func newDelivery() *delivery {
	return &delivery{engine: &engine.Engine{}, policy: twoRetries, state: wire.State{Queue: "orders"}}
}

// under is the delivery of another engine.
func (d *delivery) under(e *engine.Engine) *delivery {
	d.engine = e
	return d
}

func messageOf(d engine.Delivery) *message.Message {
	msg := message.NewMessage("uuid", []byte("payload"))
	msg.SetContext(engine.WithDelivery(context.Background(), d))

	return msg
}

func failing(err error) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("", nil)}, err
	}
}

func panicking(value any) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) { panic(value) }
}

// settlement is the only one that a delivery was given.
func settlement(t *testing.T, d *delivery) *engine.Settlement {
	t.Helper()
	require.Len(t, d.settled, 1)
	assert.Zero(t, d.succeeded)

	return d.settled[0]
}

func TestSuccess(t *testing.T) {
	d, outputs := newDelivery(), []*message.Message{message.NewMessage("", nil)}
	h := retrying(func(*message.Message) ([]*message.Message, error) { return outputs, nil })

	produced, err := h(messageOf(d))
	require.NoError(t, err)
	assert.Equal(t, outputs, produced)
	assert.Equal(t, 1, d.succeeded)
	assert.Empty(t, d.settled)
}

func TestFailure(t *testing.T) {
	for name, test := range map[string]struct {
		handler   message.HandlerFunc
		failures  int
		verdict   retry.Verdict
		text      string
		errorType string
		reason    retry.Reason // in the history
	}{
		"error":        {failing(errBoom), 0, again(1, time.Second), "boom", "*errors.errorString", ""},
		"second error": {failing(errBoom), 1, again(2, 5*time.Second), "boom", "*errors.errorString", ""},
		"last error":   {failing(errBoom), 2, dead("exhausted"), "boom", "*errors.errorString", ""},
		"permanent": {failing(retry.Permanent(errBoom)), 0, dead("permanent"), "boom", "*errors.errorString",
			"permanent"},
		"drop": {failing(retry.Drop(errBoom)), 0, retry.Verdict{Action: retry.ActionDrop}, "boom",
			"*errors.errorString", ""},
		"not retryable": {failing(opinion(false)), 0, dead("permanent"), "an opinion", "middleware_test.opinion",
			"permanent"},
		"panic": {panicking("boom"), 0, again(1, time.Second), "handler panicked: boom", "*retry.PanicError",
			"panic"},
		"last panic": {panicking("boom"), 2, dead("panic"), "handler panicked: boom", "*retry.PanicError",
			"panic"},
		"panic, error": {panicking(errBoom), 0, again(1, time.Second), "handler panicked: boom", "*retry.PanicError",
			"panic"},
		"panic, marked": {panicking(retry.Permanent(errBoom)), 0, dead("permanent"), "handler panicked: boom",
			"*retry.PanicError", "permanent"},
		"panic, nil": {panicking(nil), 0, again(1, time.Second), "handler panicked: panic called with nil " +
			"argument", "*retry.PanicError", "panic"},
		"wrapped": {failing(fmt.Errorf("x: %w", pkgerrors.Wrap(opinion(true), "y"))), 0, again(1, time.Second),
			"x: y: an opinion", "middleware_test.opinion", ""},
		"joined": {failing(errors.Join(errBoom, errBoom)), 0, again(1, time.Second), "boom\nboom",
			"*errors.joinError", ""},
		"context's error": {failing(context.Canceled), 0, again(1, time.Second), "context canceled",
			"*errors.errorString", ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDelivery()
			d.state.Count, d.state.Attempts = test.failures, test.failures

			before := time.Now()
			retried(t, d.under(&engine.Engine{Host: "host"}), test.handler)

			s := settlement(t, d)
			assert.Equal(t, test.verdict, s.Verdict)
			assert.Equal(t, test.text, s.State.Error)
			assert.Equal(t, test.errorType, s.State.ErrorType)
			assert.Equal(t, test.failures+1, s.State.Attempts)
			assert.Equal(t, "host", s.State.Host)
			assert.Equal(t, "orders", s.State.Queue)
			assert.WithinRange(t, s.State.FirstFailure, before, time.Now())
			assert.Equal(t, s.State.FirstFailure, s.State.LastFailure)
			require.Len(t, s.State.History, 1)
			assert.Equal(t, retry.FailedCall{
				Number: test.failures + 1, At: s.State.LastFailure, Error: s.State.Error, Type: test.errorType,
				Reason: test.reason,
			}, s.State.History[0])

			switch test.verdict.Action {
			case retry.ActionRetry:
				assert.Equal(t, test.verdict.Count, s.State.Count)
				assert.Equal(t, config.FormatDelay(test.verdict.Delay), s.State.Delay)
				assert.Empty(t, s.State.Reason)
			case retry.ActionDeadLetter:
				assert.Equal(t, header.CountDead, s.State.Count)
				assert.Empty(t, s.State.Delay)
				assert.Equal(t, test.verdict.Reason, s.State.Reason)
			case retry.ActionDrop, retry.ActionRequeue:
			}
		})
	}
}

func TestStateGrowsFromFailureToFailure(t *testing.T) {
	d := newDelivery()
	d.state.Replays, d.state.Arrival = 2, wire.NewArrival("e", "r", "", "", "")

	for range 3 {
		retried(t, d, failing(errBoom))
		d.state = d.settled[len(d.settled)-1].State
	}

	assert.Equal(t, header.CountDead, d.state.Count)
	assert.Equal(t, 3, d.state.Attempts)
	assert.Len(t, d.state.History, 3)
	assert.Equal(t, d.settled[0].State.FirstFailure, d.state.FirstFailure, "the first stays the first")
	assert.False(t, d.state.LastFailure.Before(d.state.FirstFailure))
	assert.Equal(t, d.state.History[2].At, d.state.LastFailure)
	assert.Equal(t, 2, d.state.Replays)
	assert.Equal(t, wire.NewArrival("e", "r", "", "", ""), d.state.Arrival)
}

// A state can come with what an earlier verdict has left: none of it goes on.
func TestEarlierVerdictsAreForgotten(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		delay  string
		reason retry.Reason
	}{
		"retry":       {errBoom, "1s", ""},
		"dead letter": {retry.Permanent(errBoom), "", "permanent"},
		"drop":        {retry.Drop(errBoom), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDelivery()
			d.state.Delay, d.state.Reason = "30s", "expired"

			retried(t, d, failing(test.err))
			assert.Equal(t, test.delay, settlement(t, d).State.Delay)
			assert.Equal(t, test.reason, settlement(t, d).State.Reason)
		})
	}
}

func TestPanicStacks(t *testing.T) {
	for _, show := range []bool{false, true} {
		d := newDelivery().under(&engine.Engine{PanicStacks: show})
		retried(t, d, panicking("boom"))
		assert.Equal(t, show, strings.Contains(settlement(t, d).State.Error, "retry_test.go"))
	}
}

// A Goexit, as FailNow of a test calls it, cannot be stopped: the goroutine ends without an answer
// to the router.
func TestGoexit(t *testing.T) {
	for name, settleErr := range map[string]error{"settled": nil, "not settled": errors.New("no")} {
		t.Run(name, func(t *testing.T) {
			d := newDelivery()
			d.err = settleErr
			msg := messageOf(d)
			before := msg.Context()

			assert.False(t, atGoexit(retrying(func(msg *message.Message) ([]*message.Message, error) {
				msg.SetContext(context.Background())
				runtime.Goexit()
				return nil, nil
			}), msg))
			assert.Equal(t, before, msg.Context())
			assert.Equal(t, []context.Context{before}, d.contexts)

			if settleErr != nil {
				assertClosed(t, msg.Nacked())
				return
			}
			assertClosed(t, msg.Acked())
			assert.Equal(t, again(1, time.Second), settlement(t, d).Verdict)
			assert.Contains(t, settlement(t, d).State.Error, "Goexit")
		})
	}
}

func assertClosed(t *testing.T, c <-chan struct{}) {
	t.Helper()

	select {
	case <-c:
	default:
		assert.Fail(t, "no answer was given to the message")
	}
}

func TestShutdown(t *testing.T) {
	for name, handler := range map[string]message.HandlerFunc{
		"error":     failing(errBoom),
		"permanent": failing(retry.Permanent(errBoom)),
		"drop":      failing(retry.Drop(errBoom)),
		"panic":     panicking(errBoom),
	} {
		t.Run(name, func(t *testing.T) {
			d := newDelivery().under(&engine.Engine{ErrorText: func(error) string { return "redacted" }})
			d.state.Count, d.state.Attempts = 2, 2
			msg := messageOf(d)
			ctx, cancel := context.WithCancel(msg.Context())
			msg.SetContext(ctx)
			produced, err := retrying(func(msg *message.Message) ([]*message.Message, error) {
				cancel() // while the handler runs
				d.withdrawn = true

				return handler(msg)
			})(msg)

			require.ErrorIs(t, err, errBoom, "the router nacks")
			require.EqualError(t, err, "redacted", "and logs")
			assert.Empty(t, produced)

			s := settlement(t, d)
			assert.Equal(t, retry.Verdict{Action: retry.ActionRequeue}, s.Verdict, "nothing is counted")
			assert.Zero(t, s.State)
		})
	}
}

// A context that has ended, such as at the deadline of a Timeout outside of ours, is no shutdown.
func TestContextThatEndedIsNoShutdown(t *testing.T) {
	for name, want := range map[error]retry.Verdict{nil: {}, errBoom: again(1, time.Second)} {
		d := newDelivery()
		msg := messageOf(d)
		ctx, cancel := context.WithCancel(msg.Context())
		cancel()
		msg.SetContext(ctx)

		_, err := retrying(failing(name))(msg)
		require.NoError(t, err)
		if name == nil {
			assert.Equal(t, 1, d.succeeded)
			assert.Empty(t, d.settled)
		} else {
			assert.Equal(t, want, settlement(t, d).Verdict)
		}
		assert.Zero(t, d.inside, "entered and left")
	}
}

// Watermill's Timeout leaves its cancelled context on the message: no shutdown, and nothing to
// settle with.
func TestTimeoutInside(t *testing.T) {
	d := newDelivery()
	msg := messageOf(d)
	before := msg.Context()

	handler := wmmiddleware.Timeout(time.Nanosecond)(func(msg *message.Message) ([]*message.Message, error) {
		<-msg.Context().Done()
		return nil, msg.Context().Err()
	})

	_, err := middleware.Retry{}.Middleware(handler)(msg)
	require.NoError(t, err)
	assert.Equal(t, again(1, time.Second), settlement(t, d).Verdict)
	assert.Equal(t, before, msg.Context())
	assert.Equal(t, []context.Context{before}, d.contexts)
}

// passesUntouched holds a middleware against its handler: the same message, outputs, error and
// panic, and nothing told.
func passesUntouched(t *testing.T, middle message.HandlerMiddleware, msg *message.Message, d *delivery) {
	t.Helper()

	outputs, ctx := []*message.Message{message.NewMessage("", nil)}, msg.Context()
	handler := middle(func(got *message.Message) ([]*message.Message, error) {
		assert.Same(t, msg, got)
		return outputs, errBoom
	})

	produced, err := handler(msg)
	assert.Equal(t, errBoom, err)
	assert.Equal(t, outputs, produced)
	assert.PanicsWithValue(t, "boom", func() { _, _ = middle(panicking("boom"))(msg) })
	assert.Equal(t, ctx, msg.Context())
	assert.Empty(t, d.contexts, "Settle was not called")
	assert.Zero(t, d.succeeded)
}

func TestMessagesOfOthersAreUntouched(t *testing.T) {
	engine := &engine.Engine{Logger: watermill.NewCaptureLogger()}

	for name, middle := range map[string]message.HandlerMiddleware{
		"retry": middleware.Retry{Of: engine}.Middleware, "poison": middleware.Poison{Of: engine}.Middleware,
	} {
		t.Run(name, func(t *testing.T) {
			d := newDelivery()
			passesUntouched(t, middle, message.NewMessage("", nil), d)

			passesUntouched(t, middle, messageOf(d), d)

			d.policy = config.Policy{Mode: config.ModeOff}
			passesUntouched(t, middle, messageOf(d.under(engine)), d)
		})
	}
}

func TestMessagesOfOthersAreReportedOnce(t *testing.T) {
	logger := watermill.NewCaptureLogger()
	handler := middleware.Retry{Of: &engine.Engine{Logger: logger}}.Middleware(failing(nil))

	for range 3 {
		_, err := handler(message.NewMessage("", nil))
		require.NoError(t, err)
	}

	require.Len(t, logger.Captured()[watermill.InfoLogLevel], 1)
	assert.Contains(t, logger.Captured()[watermill.InfoLogLevel][0].Msg, "was not received through this retrier")
}

func TestSettleError(t *testing.T) {
	errSettle := errors.New("no confirmation")

	for name, middle := range map[string]message.HandlerMiddleware{
		"retry":  middleware.Retry{}.Middleware,
		"poison": middleware.Poison{}.Middleware,
	} {
		t.Run(name, func(t *testing.T) {
			d := newDelivery().under(&engine.Engine{ErrorText: func(error) string { return "redacted" }})
			d.err = errSettle

			produced, err := middle(failing(errBoom))(messageOf(d))
			require.ErrorIs(t, err, errSettle, "the router must nack")
			require.ErrorIs(t, err, errBoom)
			assert.NotContains(t, err.Error(), errBoom.Error(), "and logs")
			assert.Empty(t, produced)
			assert.Zero(t, d.succeeded)
		})
	}
}

// pointerError panics when it is asked and is a nil pointer, as is usual.
type pointerError struct{ inner error }

func (e *pointerError) Error() string { return e.inner.Error() }
func (e *pointerError) Unwrap() error { return e.inner }

func TestErrorThatPanicsIsAFailure(t *testing.T) {
	d := newDelivery()

	retried(t, d, calling(func(*message.Message) error {
		var e *pointerError
		return e
	}))
	assert.Equal(t, again(1, time.Second), settlement(t, d).Verdict)
}
