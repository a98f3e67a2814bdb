package middleware_test

import (
	"errors"
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
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/retry"
)

// recorder keeps events, on a clock that every look at moves on by a second.
type recorder struct {
	events []retry.Event
	now    time.Time
}

func (r *recorder) engine() *engine.Engine {
	r.now = time.Unix(1_800_000_000, 0)

	return &engine.Engine{
		OnEvent: func(e retry.Event) { r.events = append(r.events, e) },
		Now:     func() time.Time { r.now = r.now.Add(time.Second); return r.now },
	}
}

func (r *recorder) kinds() []retry.EventKind {
	var kinds []retry.EventKind
	for _, e := range r.events {
		kinds = append(kinds, e.Kind)
	}

	return kinds
}

func (r *recorder) causes() []*retry.Cause {
	var causes []*retry.Cause
	for _, e := range r.events {
		causes = append(causes, e.Cause)
	}

	return causes
}

func TestEventsOfADeadLetter(t *testing.T) {
	r, d := &recorder{}, newDelivery()
	d.state.Count, d.state.Attempts = 2, 2
	d.under(r.engine())
	d.engine.ErrorText = func(error) string { return "redacted" }
	msg := retried(t, d, failing(errBoom))
	require.Equal(t, []retry.EventKind{retry.EventCall, retry.EventFailed}, r.kinds(), "no more before the broker "+
		"has confirmed")

	s := settlement(t, d)
	s.Done(nil)

	attempt := retry.Attempt{Number: 3, Try: 1, Failures: 2, MaxRetries: 2, Last: true, Calls: 2, Queue: "orders"}
	verdict := retry.Verdict{Action: retry.ActionDeadLetter, Reason: retry.ReasonExhausted}
	for i := range r.events {
		assert.False(t, r.events[i].At.IsZero())
		assert.Positive(t, r.events[i].Took+time.Duration(1-min(i, 1)), "how long it took")
		r.events[i].At, r.events[i].Took = time.Time{}, 0
	}
	call := retry.Event{Kind: retry.EventCall, Queue: "orders", Message: msg, Attempt: attempt, Calls: 2}
	failed := call
	failed.Kind, failed.Calls, failed.Class, failed.Verdict, failed.Err = retry.EventFailed, 3, retry.ClassError,
		verdict, errBoom
	failed.Cause = &retry.Cause{Error: "redacted", ErrorType: "*errors.errorString", Reason: retry.ReasonExhausted}
	ended := failed
	ended.Kind = retry.EventDeadLettered
	assert.Equal(t, []retry.Event{call, failed, ended}, r.events)
}

// What was done may be something else than what was decided, or nothing.
func TestEventsTellWhatWasCarriedOut(t *testing.T) {
	gone := errors.New("gone")
	done := func(s *engine.Settlement) { s.Done(nil) }

	for name, test := range map[string]struct {
		err   error
		carry func(*engine.Settlement)
		kind  retry.EventKind
		told  retry.Verdict
		gives error
	}{
		"retried": {errBoom, done, retry.EventRetried, again(1, time.Second), errBoom},
		"too large": {errBoom, func(s *engine.Settlement) { s.Done(&wire.State{Reason: retry.ReasonTooLarge}) },
			retry.EventDeadLettered, dead("too-large"), errBoom},
		"dropped": {retry.Drop(errBoom), done, retry.EventDropped, retry.Verdict{Action: retry.ActionDrop}, errBoom},
		"postponed": {retry.Postpone(time.Second), done, retry.EventPostponed,
			retry.Verdict{Action: retry.ActionPostpone, Delay: time.Second}, retry.ErrPostponed},
		"abandoned": {errBoom, func(s *engine.Settlement) { s.Abandoned(gone) }, retry.EventAbandoned,
			again(1, time.Second), gone},
	} {
		t.Run(name, func(t *testing.T) {
			r, d := &recorder{}, newDelivery()
			retried(t, d.under(r.engine()), failing(test.err))
			test.carry(settlement(t, d))

			require.Equal(t, []retry.EventKind{retry.EventCall, retry.EventFailed, test.kind}, r.kinds())
			assert.Equal(t, test.told, r.events[2].Verdict)
			assert.ErrorIs(t, r.events[2].Err, test.gives)
			assert.Equal(t, time.Second, r.events[2].Took, "since it was decided")
		})
	}
}

// The cause is that of the dead letter: before there is one, of the one that the message would
// become; then with the shorter headers that a full frame leaves. What is postponed has none.
func TestEventsTellTheCauseOfTheDeadLetter(t *testing.T) {
	r, d := &recorder{}, newDelivery()
	retried(t, d.under(r.engine()), failing(errBoom))
	settlement(t, d).Done(&wire.State{Count: 1})
	want := &retry.Cause{Error: "boom", ErrorType: "*errors.errorString", Reason: retry.ReasonExhausted}
	assert.Equal(t, []*retry.Cause{nil, want, want}, r.causes())
	assert.Same(t, r.events[1].Cause, r.events[2].Cause)
	assert.Equal(t, want.Fingerprint(), r.events[1].Cause.Fingerprint())

	r, d = &recorder{}, newDelivery()
	d.state.Count = 2
	retried(t, d.under(r.engine()), panicking(strings.Repeat("boom ", 200)))
	short := settlement(t, d).State.Shrink(wire.ShrinkSteps)
	settlement(t, d).Done(&short)
	assert.Equal(t, &retry.Cause{Reason: retry.ReasonPanic}, r.events[2].Cause)
	assert.Contains(t, r.events[1].Cause.Error, "boom", "what was told before stays")

	r, d = &recorder{}, newDelivery()
	retried(t, d.under(r.engine()), failing(retry.Postpone(time.Second)))
	settlement(t, d).Done(&wire.State{})
	assert.Equal(t, []*retry.Cause{nil, nil, nil}, r.causes())
}

// Each immediate try is an attempt, and tells which.
func TestEventsOfImmediateTries(t *testing.T) {
	r, d := &recorder{}, newDelivery()
	d.policy.Immediate = 1
	calls := 0
	retried(t, d.under(r.engine()), calling(func(*message.Message) error {
		if calls++; calls == 1 {
			return errBoom
		}

		return nil
	}))

	require.Equal(t, []retry.EventKind{retry.EventCall, retry.EventFailed, retry.EventCall}, r.kinds(),
		"whether the last has succeeded is known when its outputs are published")
	assert.Equal(t, retry.ActionRetryNow, r.events[1].Verdict.Action)
	assert.Equal(t, []int{1, 1, 2}, []int{r.events[0].Attempt.Try, r.events[1].Attempt.Try, r.events[2].Attempt.Try})
	assert.Equal(t, []int{0, 1, 1}, []int{r.events[0].Calls, r.events[1].Calls, r.events[2].Calls})
}

// Two middlewares around one handler are one attempt.
func TestEventsOfNestedMiddlewares(t *testing.T) {
	for name, handler := range map[string]message.HandlerFunc{"fails": failing(errBoom), "succeeds": failing(nil)} {
		t.Run(name, func(t *testing.T) {
			r, d := &recorder{}, newDelivery()
			msg := retried(t, d.under(r.engine()), middleware.Poison{}.Middleware(handler))
			d.engine.Ended(retry.EventSucceeded, d, msg) // what the consumer says then

			ended := retry.EventSucceeded
			if name == "fails" {
				ended = retry.EventFailed
			}
			assert.Equal(t, []retry.EventKind{retry.EventCall, ended}, r.kinds())
		})
	}
}

// An attempt ends once, and a shutdown is no failure.
func TestEventsOfAShutdown(t *testing.T) {
	r, d := &recorder{}, newDelivery()
	d.withdrawn = true
	engine := r.engine()
	msg := messageOf(d.under(engine))
	_, err := middleware.Retry{}.Middleware(failing(errBoom))(msg)
	require.Error(t, err)
	engine.Ended(retry.EventRequeued, d, msg)
	engine.Ended(retry.EventRequeued, d, msg)

	require.Equal(t, []retry.EventKind{retry.EventCall, retry.EventRequeued}, r.kinds())
	assert.Equal(t, 0, r.events[1].Calls, "it was not counted")

	d.withdrawn = false
	engine.Judge(d, retry.Failure{Class: retry.ClassUnpublishable, Err: errBoom, Message: msg})
	assert.Len(t, r.events, 2, "a failure that comes after the end of its attempt is told no more")
}

// Messages that no handler may see have no attempt.
func TestEventsWithoutAnAttempt(t *testing.T) {
	for class, told := range map[retry.Class][]retry.EventKind{
		retry.ClassCrashed:     {retry.EventUnhandled, retry.EventRetried},
		retry.ClassUndecodable: {retry.EventUnhandled, retry.EventDeadLettered},
	} {
		t.Run(string(class), func(t *testing.T) {
			r, d := &recorder{}, newDelivery()
			s := r.engine().Judge(d, retry.Failure{Class: class, Err: errBoom, Topic: "topic",
				Message: message.NewMessage("1", nil)})
			s.Done(nil)
			assert.Equal(t, told, r.kinds())
			assert.Zero(t, r.events[0].Took)
			assert.Equal(t, "topic", r.events[0].Topic)
		})
	}

	t.Run("expired", func(t *testing.T) {
		r, d := &recorder{}, newDelivery()
		d.under(r.engine()).state.Deadline = r.now
		retried(t, d, failing(nil))
		s := settlement(t, d)
		s.Done(nil)
		require.Equal(t, []retry.EventKind{retry.EventUnhandled, retry.EventDeadLettered}, r.kinds())
		for _, e := range r.events {
			assert.Equal(t, retry.ClassExpired, e.Class)
			assert.Equal(t, retry.ReasonExpired, e.Verdict.Reason)
		}
	})
}

// Listening is passive: a bug there changes nothing but the log.
func TestOnEventPanics(t *testing.T) {
	logger, d := watermill.NewCaptureLogger(), newDelivery()
	d.policy = config.Policy{Mode: config.ModeDeadLetter}
	d.under(&engine.Engine{Logger: logger, OnEvent: func(retry.Event) { panic("oh, secret") }})
	d.engine.ErrorText = func(err error) string { return strings.ReplaceAll(err.Error(), "secret", "redacted") }
	poisoned(t, d, failing(errBoom))
	require.NotPanics(t, func() { settlement(t, d).Done(nil) })

	for i, kind := range []string{"call", "failed", "dead-lettered"} {
		panicked := logger.Captured()[watermill.ErrorLogLevel]
		at := []int{0, 2, 3}[i] // between them it is logged that the message is dead-lettered
		require.Greater(t, len(panicked), at)
		assert.Equal(t, "OnEvent panicked", panicked[at].Msg)
		assert.EqualError(t, panicked[at].Err, "oh, redacted")
		assert.Equal(t, kind, panicked[at].Fields["event"])
	}
}
