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
	"github.com/amqpretry/watermill-retry/middleware"
)

// recorder keeps events, on a clock that every look at moves on by a second.
type recorder struct {
	events []middleware.Event
	now    time.Time
}

func (r *recorder) poison() middleware.Poison {
	r.now = time.Unix(1_800_000_000, 0)

	return middleware.Poison{
		Owner: owner, OnEvent: func(e middleware.Event) { r.events = append(r.events, e) },
		Now: func() time.Time { r.now = r.now.Add(time.Second); return r.now },
	}
}

func (r *recorder) kinds() []middleware.EventKind {
	var kinds []middleware.EventKind
	for _, e := range r.events {
		kinds = append(kinds, e.Kind)
	}

	return kinds
}

func TestEventsOfADeadLetter(t *testing.T) {
	r, d := &recorder{}, newDelivery()
	d.state.Count, d.state.Attempts = 2, 2
	msg := messageOf(d)
	poison := r.poison()
	poison.ErrorText = func(error) string { return "redacted" }

	_, err := middleware.Retry{Poison: poison}.Middleware(failing(errBoom))(msg)
	require.NoError(t, err)
	require.Equal(t, []middleware.EventKind{middleware.EventAttempt, middleware.EventFailed}, r.kinds(), "no more before the broker has confirmed")

	s := settlement(t, d)
	s.Done(s.Verdict)

	attempt := middleware.Attempt{Number: 3, Try: 1, Failures: 2, MaxRetries: 2, Last: true, Calls: 2, Queue: "orders"}
	verdict := middleware.Verdict{Action: middleware.ActionDeadLetter, Reason: middleware.ReasonExhausted}
	for i := range r.events {
		assert.False(t, r.events[i].At.IsZero())
		assert.Positive(t, r.events[i].Took+time.Duration(1-min(i, 1)), "how long it took")
		r.events[i].At, r.events[i].Took = time.Time{}, 0
	}
	assert.Equal(t, []middleware.Event{
		{Kind: middleware.EventAttempt, Queue: "orders", Message: msg, Attempt: attempt, Calls: 2},
		{
			Kind: middleware.EventFailed, Queue: "orders", Message: msg, Attempt: attempt, Calls: 3,
			Class: middleware.ClassError, Verdict: verdict, Err: errBoom,
		},
		{
			Kind: middleware.EventDeadLettered, Queue: "orders", Message: msg, Attempt: attempt, Calls: 3,
			Class: middleware.ClassError, Verdict: verdict, Err: errBoom,
		},
	}, r.events)
}

// What was done may be something else than what was decided, or nothing.
func TestEventsTellWhatWasCarriedOut(t *testing.T) {
	gone := errors.New("gone")

	for name, test := range map[string]struct {
		err   error
		carry func(middleware.Settlement)
		kind  middleware.EventKind
		told  middleware.Verdict
		gives error
	}{
		"retried": {errBoom, func(s middleware.Settlement) { s.Done(s.Verdict) }, middleware.EventRetried, retry(1, time.Second), errBoom},
		"too large": {
			errBoom, func(s middleware.Settlement) { s.Done(dead("too-large")) }, middleware.EventDeadLettered, dead("too-large"), errBoom,
		},
		"dropped": {
			middleware.Drop(errBoom), func(s middleware.Settlement) { s.Done(s.Verdict) }, middleware.EventDropped,
			middleware.Verdict{Action: middleware.ActionDrop}, errBoom,
		},
		"postponed": {
			middleware.Postpone(time.Second), func(s middleware.Settlement) { s.Done(s.Verdict) }, middleware.EventPostponed,
			middleware.Verdict{Action: middleware.ActionPostpone, Delay: time.Second}, middleware.ErrPostponed,
		},
		"abandoned": {errBoom, func(s middleware.Settlement) { s.Abandoned(gone) }, middleware.EventAbandoned, retry(1, time.Second), gone},
	} {
		t.Run(name, func(t *testing.T) {
			r, d := &recorder{}, newDelivery()
			_, err := middleware.Retry{Poison: r.poison()}.Middleware(failing(test.err))(messageOf(d))
			require.NoError(t, err)
			test.carry(settlement(t, d))

			require.Equal(t, []middleware.EventKind{middleware.EventAttempt, middleware.EventFailed, test.kind}, r.kinds())
			assert.Equal(t, test.told, r.events[2].Verdict)
			assert.ErrorIs(t, r.events[2].Err, test.gives)
			assert.Equal(t, time.Second, r.events[2].Took, "since it was decided")
		})
	}
}

// Each immediate try is an attempt, and tells which.
func TestEventsOfImmediateTries(t *testing.T) {
	r, d := &recorder{}, newDelivery()
	d.policy.Immediate = 1
	calls := 0
	_, err := middleware.Retry{Poison: r.poison()}.Middleware(func(*message.Message) ([]*message.Message, error) {
		if calls++; calls == 1 {
			return nil, errBoom
		}

		return nil, nil
	})(messageOf(d))
	require.NoError(t, err)

	require.Equal(t, []middleware.EventKind{middleware.EventAttempt, middleware.EventFailed, middleware.EventAttempt}, r.kinds(),
		"whether the last has succeeded is known when its outputs are published")
	assert.Equal(t, middleware.ActionRetryNow, r.events[1].Verdict.Action)
	assert.Equal(t, []int{1, 1, 2}, []int{r.events[0].Attempt.Try, r.events[1].Attempt.Try, r.events[2].Attempt.Try})
	assert.Equal(t, []int{0, 1, 1}, []int{r.events[0].Calls, r.events[1].Calls, r.events[2].Calls})
}

// Two middlewares around one handler are one attempt.
func TestEventsOfNestedMiddlewares(t *testing.T) {
	for name, handler := range map[string]message.HandlerFunc{"fails": failing(errBoom), "succeeds": failing(nil)} {
		t.Run(name, func(t *testing.T) {
			r, d := &recorder{}, newDelivery()
			poison := r.poison()
			_, err := middleware.Retry{Poison: poison}.Middleware(poison.Middleware(handler))(messageOf(d))
			require.NoError(t, err)
			poison.Ended(middleware.EventSucceeded, d, messageOf(d)) // what the consumer says then

			ended := middleware.EventSucceeded
			if name == "fails" {
				ended = middleware.EventFailed
			}
			assert.Equal(t, []middleware.EventKind{middleware.EventAttempt, ended}, r.kinds())
		})
	}
}

// An attempt ends once, and a shutdown is no failure.
func TestEventsOfAShutdown(t *testing.T) {
	r, d := &recorder{}, newDelivery()
	d.withdrawn = true
	poison, msg := r.poison(), messageOf(d)
	_, err := middleware.Retry{Poison: poison}.Middleware(failing(errBoom))(msg)
	require.Error(t, err)
	poison.Ended(middleware.EventRequeued, d, msg)
	poison.Ended(middleware.EventRequeued, d, msg)

	require.Equal(t, []middleware.EventKind{middleware.EventAttempt, middleware.EventRequeued}, r.kinds())
	assert.Equal(t, 0, r.events[1].Calls, "it was not counted")

	d.withdrawn = false
	poison.Judge(d, middleware.Failure{Class: middleware.ClassUnpublishable, Err: errBoom, Message: msg})
	assert.Len(t, r.events, 2, "a failure that comes after the end of its attempt is told no more")
}

// Messages that no handler may see have no attempt.
func TestEventsWithoutAnAttempt(t *testing.T) {
	for class, told := range map[middleware.Class][]middleware.EventKind{
		middleware.ClassCrashed:     {middleware.EventUnhandled, middleware.EventRetried},
		middleware.ClassUndecodable: {middleware.EventUnhandled, middleware.EventDeadLettered},
	} {
		t.Run(string(class), func(t *testing.T) {
			r, d := &recorder{}, newDelivery()
			s := r.poison().Judge(d, middleware.Failure{Class: class, Err: errBoom, Topic: "topic", Message: message.NewMessage("1", nil)})
			s.Done(s.Verdict)
			assert.Equal(t, told, r.kinds())
			assert.Zero(t, r.events[0].Took)
			assert.Equal(t, "topic", r.events[0].Topic)
		})
	}

	t.Run("expired", func(t *testing.T) {
		r, d := &recorder{}, newDelivery()
		poison := r.poison()
		d.state.Deadline = r.now
		_, err := middleware.Retry{Poison: poison}.Middleware(failing(nil))(messageOf(d))
		require.NoError(t, err)
		s := settlement(t, d)
		s.Done(s.Verdict)
		require.Equal(t, []middleware.EventKind{middleware.EventUnhandled, middleware.EventDeadLettered}, r.kinds())
		for _, e := range r.events {
			assert.Equal(t, middleware.ClassExpired, e.Class)
			assert.Equal(t, middleware.ReasonExpired, e.Verdict.Reason)
		}
	})
}

// Listening is passive: a bug there changes nothing but the log.
func TestOnEventPanics(t *testing.T) {
	logger, d := watermill.NewCaptureLogger(), newDelivery()
	d.policy = config.Policy{Mode: config.ModeDeadLetter}
	poison := middleware.Poison{Owner: owner, Logger: logger, OnEvent: func(middleware.Event) { panic("oh, secret") }}
	poison.ErrorText = func(err error) string { return strings.ReplaceAll(err.Error(), "secret", "redacted") }

	_, err := poison.Middleware(failing(errBoom))(messageOf(d))
	require.NoError(t, err)
	require.NotPanics(t, func() { settlement(t, d).Done(dead("exhausted")) })

	for i, kind := range []string{"attempt", "failed", "dead-lettered"} {
		panicked := logger.Captured()[watermill.ErrorLogLevel]
		at := []int{0, 2, 3}[i] // between them it is logged that the message is dead-lettered
		require.Greater(t, len(panicked), at)
		assert.Equal(t, "OnEvent panicked", panicked[at].Msg)
		assert.EqualError(t, panicked[at].Err, "oh, redacted")
		assert.Equal(t, kind, panicked[at].Fields["event"])
	}
}
