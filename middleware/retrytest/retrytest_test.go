package retrytest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/retry"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var errDown = errors.New("the warehouse does not answer")

func newMessage() *message.Message { return message.NewMessage("order-1", []byte("{}")) }

// returns is a handler that returns these, call by call, and the last one from then on.
func returns(errs ...error) message.NoPublishHandlerFunc {
	var calls atomic.Int64

	return func(*message.Message) error {
		return errs[min(int(calls.Add(1)), len(errs))-1]
	}
}

func twoRetries() config.Policy { return config.Policy{Delays: seconds(1, 5)} }

func TestLifeToTheDeadLetterQueue(t *testing.T) {
	t.Parallel()

	r := play(retrytest.Service{
		Policy: twoRetries(), Topic: "orders", HandlerName: "ship", Host: "host-1", Clock: retrytest.NewClock(start),
		ConsumerHandler: returns(errDown, errDown, fmt.Errorf("still: %w", errDown)),
	})

	r.AssertDeadLettered(t, retry.ReasonExhausted)
	r.AssertDelays(t, seconds(1, 5)...)
	r.AssertCalls(t, 3)
	require.NoError(t, r.Err)
	assert.Equal(t, 3, r.Attempts())
	assert.Equal(t, start, r.Began)
	assert.Equal(t, start.Add(6*time.Second), r.Ended)

	require.Len(t, r.Steps, 3)
	for i, at := range seconds(0, 1, 6) {
		step := r.Steps[i]
		assert.Equal(t, start.Add(at), step.At)
		assert.Equal(t, i+1, step.Attempt.Number)
		assert.Equal(t, 1, step.Attempt.Try)
		assert.Equal(t, i == 2, step.Attempt.Last)
		assert.Equal(t, retry.ClassError, step.Class)
		require.ErrorIs(t, step.Err, errDown)
	}
	assert.Equal(t, retry.Verdict{Action: retry.ActionRetry, Count: 1, Delay: time.Second}, r.Steps[0].Verdict)

	for i, delay := range []string{"1s", "5s", ""} {
		headers := r.Steps[i].Headers
		assert.Equal(t, delay, headers["amqpretry-delay"])
		assert.Equal(t, strconv.Itoa(i+1), headers["amqpretry-attempts"])
	}
	assert.Equal(t, r.DeadLetter.Headers, r.Steps[2].Headers)

	deadLetter := r.DeadLetter
	assert.Equal(t, "still: "+errDown.Error(), deadLetter.Error)
	assert.Equal(t, "*errors.errorString", deadLetter.ErrorType)
	assert.Equal(t, 3, deadLetter.Calls)
	assert.Equal(t, 0, deadLetter.Replays)
	assert.Equal(t, start, deadLetter.FirstFailure)
	assert.Equal(t, start.Add(6*time.Second), deadLetter.LastFailure)
	require.Len(t, deadLetter.History, 3)
	assert.Equal(t, retry.FailedCall{
		Number: 2, At: start.Add(time.Second), Error: errDown.Error(), Type: "*errors.errorString",
	}, deadLetter.History[1])

	assert.Equal(t, "order-1", deadLetter.Message.UUID)
	assert.Equal(t, message.Payload("{}"), deadLetter.Message.Payload)
	for key, value := range map[string]string{
		"amqpretry-v": "1", "amqpretry-count": "-1", "amqpretry-reason": "exhausted", "amqpretry-attempts": "3",
		"amqpretry-queue": "orders",
		"amqpretry-topic": "orders", "amqpretry-handler": "ship", "amqpretry-host": "host-1",
		"amqpretry-first-failure": "2026-03-01T12:00:00.000Z",
		"handler_poisoned":        "ship", "topic_poisoned": "orders", "subscriber_poisoned": "amqpretry.Subscriber",
	} {
		assert.Equal(t, value, deadLetter.Headers[key], key)
	}
}

func TestSuccess(t *testing.T) {
	t.Parallel()

	output := message.NewMessage("shipped", nil)
	r := play(retrytest.Service{Policy: twoRetries(), Handler: func(msg *message.Message) ([]*message.Message, error) {
		if attempt, _ := retry.AttemptFromContext(msg.Context()); attempt.Number < 2 {
			return message.Messages{message.NewMessage("not published", nil)}, errDown
		}

		return message.Messages{output}, nil
	}})

	r.AssertSucceeded(t, 2)
	r.AssertDelays(t, time.Second)
	assert.Equal(t, []*message.Message{output}, r.Outputs)
	assert.Nil(t, r.DeadLetter)
	assert.Zero(t, r.Steps[1].Verdict)
}

func TestTheTopicsPolicyHolds(t *testing.T) {
	t.Parallel()

	s := retrytest.Service{
		Policies: config.Policies{
			Default: config.Policy{Mode: config.ModeDeadLetter},
			Topics:  map[string]config.Policy{"orders": twoRetries()},
		},
		ConsumerHandler: returns(errDown),
	}
	s.Topic = "mails"
	play(s).AssertDelays(t)
	s.Topic = "orders"
	play(s).AssertDelays(t, seconds(1, 5)...)
	s.Policies = config.Policies{}
	play(s).AssertDelays(t, config.Default().Schedule()...)
}

func TestImmediateTriesAndJitter(t *testing.T) {
	t.Parallel()

	policy := twoRetries()
	policy.Immediate, policy.Jitter = 2, 0.5
	r := play(retrytest.Service{Policy: policy, Random: 0.5, ConsumerHandler: returns(errDown)})

	r.AssertDelays(t, 750*time.Millisecond, 3750*time.Millisecond)
	r.AssertCalls(t, 5)
	assert.Equal(t, 3, r.Attempts())
	assert.Equal(t, []int{1, 2, 3, 1, 1}, tries(r))
	assert.Contains(t, r.String(), "attempt 1 of 3, try 3")
	assert.Contains(t, r.String(), "retry 1 after 1s, shortened to 750ms")
}

func tries(r retrytest.Result) []int {
	var all []int
	for _, s := range r.Steps {
		all = append(all, s.Attempt.Try)
	}

	return all
}

// A middleware can acknowledge what its handler has not handled: that is no success.
func TestSwallowed(t *testing.T) {
	t.Parallel()

	ignored := wmmiddleware.NewIgnoreErrors([]error{errDown})
	seen := false
	duplicates := around(func(h message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
		if seen { // as Watermill's Deduplicator
			return nil, nil
		}
		seen = true

		return h(msg)
	})
	none := around(func(message.HandlerFunc, *message.Message) ([]*message.Message, error) { return nil, nil })
	for name, test := range map[string]struct {
		middle message.HandlerMiddleware
		calls  int
	}{
		"an error that is ignored":              {ignored.Middleware, 1},
		"a retry that is taken for a duplicate": {duplicates[0], 1},
		"no call":                               {none[0], 0},
	} {
		var said []string
		r := play(retrytest.Service{
			Policy: twoRetries(), Middlewares: []message.HandlerMiddleware{test.middle},
			ConsumerHandler: returns(errDown, nil),
		})
		assert.Equal(t, retrytest.Succeeded, r.End, name)
		r.AssertCalls(t, test.calls)
		r.AssertSwallowed(t)
		for attempt := range 4 {
			assert.False(t, r.AssertSucceeded(reporter{&said}, attempt), name)
		}
		assert.Contains(t, said[0], "a middleware has acknowledged it, and its handler has not succeeded")
	}

	r := run(returns(errDown, nil))
	r.AssertSucceeded(t, 2)
	assert.False(t, r.AssertSwallowed(reporter{new([]string)}))
}

// The last attempt is known by the age of the message, too, by the clock of the test.
func TestLastAttemptByAge(t *testing.T) {
	t.Parallel()

	var last []bool
	policy := twoRetries()
	policy.MaxAge = 4 * time.Second
	for name, clock := range map[string]*retrytest.Clock{
		"long ago": retrytest.NewClock(start), "in the future": retrytest.NewClock(time.Now().Add(1000 * time.Hour)),
	} {
		last = nil
		r := play(retrytest.Service{Policy: policy, Clock: clock,
			ConsumerHandler: func(msg *message.Message) error {
				attempt, _ := retry.AttemptFromContext(msg.Context())
				last = append(last, attempt.Last)

				return errDown
			}})

		r.AssertDeadLettered(t, retry.ReasonExpired)
		assert.Equal(t, []bool{false, true}, last, name)
	}
}

func TestWaitsThatErrorsAskFor(t *testing.T) {
	t.Parallel()

	r := run(returns(retry.Postpone(3*time.Second), retry.RetryAfter(12*time.Second, errDown), nil))

	r.AssertDelays(t, 3*time.Second, 12*time.Second)
	r.AssertSucceeded(t, 2)
	assert.Equal(t, retry.ClassPostponed, r.Steps[0].Class)
	assert.Len(t, r.Steps, 8, "1s, 1s, 1s; 5s, 5s, 1s, 1s")
}

// What a handler does to the clock, it has taken.
func TestSlowHandler(t *testing.T) {
	t.Parallel()

	clock := retrytest.NewClock(start)
	policy := twoRetries()
	policy.MaxAge = 7 * time.Second
	r := play(retrytest.Service{Policy: policy, Clock: clock, ConsumerHandler: func(*message.Message) error {
		clock.Advance(2 * time.Second)
		return errDown
	}})

	r.AssertDeadLettered(t, retry.ReasonExpired)
	r.AssertDelays(t, time.Second)
	assert.Equal(t, 2*time.Second, r.Steps[0].Took)
	assert.Equal(t, start.Add(3*time.Second), r.Steps[1].At)
	assert.Equal(t, start.Add(5*time.Second), r.Ended)
	assert.Equal(t, clock.Now(), r.Ended)
	assert.Equal(t, start.Add(7*time.Second), r.Steps[1].Attempt.Deadline)
}

func TestExpirationAndTimestamp(t *testing.T) {
	t.Parallel()

	s := retrytest.Service{Policy: twoRetries(), Clock: retrytest.NewClock(start), ConsumerHandler: returns(errDown),
		Expiration: 3 * time.Second}
	r := play(s)
	r.AssertDeadLettered(t, retry.ReasonExpired)
	r.AssertDelays(t, time.Second)
	assert.Equal(t, "3000", r.DeadLetter.Headers["amqpretry-expiration"])

	// whole seconds, the broken one is the message's
	s.Clock, s.Timestamp = retrytest.NewClock(start), start.Add(-2500*time.Millisecond)
	r = play(s)
	assert.Equal(t, start.Add(-2*time.Second), r.Steps[0].Attempt.Since)
	assert.Equal(t, start.Add(time.Second), r.Steps[0].Attempt.Deadline)
	r.AssertCalls(t, 1)
}

// Nobody learns what happens in a process that dies, and what it had in memory is gone.
func TestCrash(t *testing.T) {
	t.Parallel()

	policy := twoRetries()
	policy.Immediate = 1
	var events []retry.EventKind
	s := retrytest.Service{
		Policy: policy, ConsumerHandler: returns(errDown, errDown, nil),
		Faults:  map[int]retrytest.Fault{2: retrytest.Crash},
		Decide:  func(f retry.Failure) error { assert.ErrorIs(t, f.Err, errDown); return nil },
		OnEvent: func(e retry.Event) { events = append(events, e.Kind) },
	}
	r := play(s)

	r.AssertSucceeded(t, 1)
	r.AssertCalls(t, 3)
	assert.Equal(t, []int{1, 2, 1}, tries(r))
	assert.Equal(t, retrytest.Crash, r.Steps[1].Fault)
	assert.Equal(t, retry.ClassCrashed, r.Steps[1].Class)
	assert.Equal(t, []retry.EventKind{
		retry.EventCall, retry.EventFailed, retry.EventCall, // and no more of this process
		retry.EventCall, retry.EventSucceeded,
	}, events)

	s.ConsumerHandler, s.Decide = func(*message.Message) error { panic("out of memory") }, nil
	s.Faults = map[int]retrytest.Fault{retrytest.EveryCall: retrytest.Crash}
	s.Middlewares = []message.HandlerMiddleware{wmmiddleware.Recoverer}
	r = play(s)
	r.AssertDeadLettered(t, retry.ReasonCrashed)
	r.AssertCalls(t, 3*config.Default().CrashLimit)
	r.AssertDelays(t, seconds(1, 5)...)
	assert.Equal(t, "delivered 10 times without an acknowledgement; the policy's CrashLimit is 10", r.DeadLetter.Error)
}

func TestShutdown(t *testing.T) {
	t.Parallel()

	cause := []error{}
	r := play(retrytest.Service{
		Policy: twoRetries(), Faults: map[int]retrytest.Fault{1: retrytest.Shutdown, 3: retrytest.Shutdown},
		ConsumerHandler: func(msg *message.Message) error {
			cause = append(cause, msg.Context().Err())
			if len(cause) == 3 {
				return nil
			}

			return errDown
		},
	})

	assert.Equal(t, []error{context.Canceled, nil, context.Canceled, nil, nil}, cause)
	r.AssertDeadLettered(t, retry.ReasonExhausted)
	r.AssertCalls(t, 5)
	assert.Equal(t, 3, r.DeadLetter.Calls, "two were not counted")
	assert.Equal(t, retry.ActionRequeue, r.Steps[0].Verdict.Action)
	require.ErrorIs(t, r.Steps[0].Err, errDown)
	assert.Contains(t, r.String(), "taken away by a shutdown: the warehouse does not answer")
}

func TestUnpublishable(t *testing.T) {
	t.Parallel()

	s := retrytest.Service{Policy: twoRetries(),
		Faults: map[int]retrytest.Fault{retrytest.EveryCall: retrytest.Unpublishable}}
	s.Handler = func(*message.Message) ([]*message.Message, error) {
		return message.Messages{message.NewMessage("output", nil)}, nil
	}
	r := play(s)
	r.AssertDeadLettered(t, retry.ReasonUnpublishable)
	r.AssertDelays(t, seconds(1, 5)...)
	r.AssertCalls(t, 3)
	assert.Empty(t, r.Outputs)

	s.Handler = func(*message.Message) ([]*message.Message, error) { return nil, nil }
	play(s).AssertSucceeded(t, 1) // nothing to publish
}

func TestUndecodable(t *testing.T) {
	t.Parallel()
	late := errors.New("no schema for {}")
	unmarshal := returns(late, late, late, late, nil) // twice it is not due
	s := retrytest.Service{
		ConsumerHandler: returns(nil), Unmarshal: unmarshal,
		Decide: func(f retry.Failure) error {
			assert.Equal(t, retry.ClassUndecodable, f.Class)
			assert.Equal(t, "{}", string(f.Payload))

			return retry.RetryAfter(time.Minute, f.Err)
		},
	}
	r := play(s)
	r.AssertDelays(t, time.Minute, time.Minute)
	r.AssertSucceeded(t, 3)
	r.AssertCalls(t, 1)

	s.Decide, s.Unmarshal = nil, func(*message.Message) error { panic("at the schema") }
	r = play(s)
	r.AssertDeadLettered(t, retry.ReasonUndecodable)
	assert.Equal(t, "marshaler panicked: at the schema", r.DeadLetter.Error)

	s.Policy = config.Policy{Mode: config.ModeOff}
	play(s).AssertCalls(t, 1) // there is no dead-letter queue: the handler gets it as it is
}

func TestReplay(t *testing.T) {
	t.Parallel()

	s := retrytest.Service{Policy: twoRetries(), ConsumerHandler: returns(errDown), Expiration: time.Hour}
	first := play(s)
	second := first.Replay(s)
	second.AssertDeadLettered(t, retry.ReasonExhausted)
	assert.Equal(t, first.Ended, second.Began)
	assert.Equal(t, 6, second.DeadLetter.Calls)
	assert.Equal(t, 1, second.DeadLetter.Replays)
	assert.Equal(t, 1, second.Steps[0].Attempt.Replays)
	assert.Len(t, second.DeadLetter.History, 6)
	assert.Zero(t, second.Steps[0].Attempt.Deadline, "its own expiration is over")

	s.ConsumerHandler = func(msg *message.Message) error {
		assert.Equal(t, message.Metadata{}, msg.Metadata, "its death leaves nothing")
		assert.Equal(t, "order-1", msg.UUID)

		return nil
	}
	repaired := second.Replay(s)
	repaired.AssertSucceeded(t, 1)
	assert.Equal(t, 2, repaired.Steps[0].Attempt.Replays)

	assert.ErrorContains(t, repaired.Replay(s).Err, "no dead letter to replay: message \"order-1\" of topic "+
		"\"topic\": succeeded after 1 call")
	assert.ErrorContains(t, second.Replay(retrytest.Service{}).Err, "Service.Handler")
}

func TestMiddlewaresOfTheUsers(t *testing.T) {
	t.Parallel()

	var order []string
	named := func(name string) message.HandlerMiddleware {
		return around(func(h message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
			order = append(order, name)
			return h(msg)
		})[0]
	}
	r := play(retrytest.Service{
		Policy: twoRetries(), ConsumerHandler: returns(errDown), PanicStacks: true,
		Middlewares: []message.HandlerMiddleware{named("first"), named("second"),
			wmmiddleware.Retry{MaxRetries: 2}.Middleware},
	})
	r.AssertCalls(t, 9)
	assert.Equal(t, 3, r.Attempts())
	assert.Equal(t, 3, r.Steps[0].Calls)
	assert.Equal(t, []string{"first", "second"}, order[:2])
	assert.Contains(t, r.String(), "attempt 2 of 3, 3 calls")

	r = play(retrytest.Service{
		Policy: twoRetries(), ConsumerHandler: func(*message.Message) error { panic("oh") },
		Middlewares: []message.HandlerMiddleware{wmmiddleware.Recoverer},
	})
	r.AssertDeadLettered(t, retry.ReasonExhausted) // Recoverer makes an error of it
	assert.Equal(t, "middleware.RecoveredPanicError", r.DeadLetter.ErrorType)

	play(retrytest.Service{
		Policy: twoRetries(), ConsumerHandler: returns(errDown, nil),
		Middlewares: []message.HandlerMiddleware{wmmiddleware.Timeout(time.Minute), wmmiddleware.CorrelationID},
	}).AssertSucceeded(t, 2)
}

// What a router puts into the context is there, because it is a router's.
func TestContextOfTheRouter(t *testing.T) {
	t.Parallel()

	play(retrytest.Service{Topic: "orders", HandlerName: "ship",
		ConsumerHandler: func(msg *message.Message) error {
			assert.Equal(t, "orders", message.SubscribeTopicFromCtx(msg.Context()))
			assert.Equal(t, "ship", message.HandlerNameFromCtx(msg.Context()))
			attempt, ok := retry.AttemptFromContext(msg.Context())
			assert.True(t, ok)
			assert.Equal(t, "orders", attempt.Queue)

			return nil
		}}).AssertSucceeded(t, 1)
}

// Texts are cut and histories bounded, as they are on the way through a broker.
func TestTheWireIsReal(t *testing.T) {
	t.Parallel()

	s := retrytest.Service{
		Policy:          config.Policy{Delays: seconds(1), Retries: 20},
		ConsumerHandler: func(*message.Message) error { return errors.New(strings.Repeat("ü", 2000)) },
	}
	r := play(s)
	assert.LessOrEqual(t, len(r.DeadLetter.Error), 2048)
	assert.True(t, strings.HasSuffix(r.DeadLetter.Error, "ü…"))
	require.Len(t, r.DeadLetter.History, 10)
	assert.Equal(t, 1, r.DeadLetter.History[0].Number)
	assert.Equal(t, 13, r.DeadLetter.History[1].Number)

	s.ErrorText = func(error) string { return "[redacted]" }
	r = play(s)
	assert.Equal(t, "[redacted]", r.DeadLetter.Error)
	assert.Contains(t, r.String(), "[redacted]")
	assert.NotContains(t, r.String(), "ü")
}

func TestEverythingThatIsWrongAtOnce(t *testing.T) {
	t.Parallel()

	r := play(retrytest.Service{
		Policy: config.Policy{Retries: -1}, Policies: config.Policies{Default: config.Policy{Immediate: 99}},
		Random: 1, Expiration: -1, MaxDeliveries: -1, Middlewares: []message.HandlerMiddleware{nil},
		Faults: map[int]retrytest.Fault{-1: "flood"},
	})
	for _, path := range []string{
		"Service.Policy.Retries", "Service.Policies.Default.Immediate", "Service.Handler", "Service.Policy",
		"Service.Random", "Service.Expiration",
		"Service.MaxDeliveries", "Service.Middlewares", "Service.Faults[-1]: no call", "Service.Faults[-1]: unknown " +
			"fault",
	} {
		assert.ErrorContains(t, r.Err, path)
	}
	assert.ErrorAs(t, r.Err, new(*config.FieldError))

	two := retrytest.Service{ConsumerHandler: returns(nil),
		Handler: func(*message.Message) ([]*message.Message, error) { return nil, nil }}
	assert.ErrorContains(t, retrytest.Run(two, newMessage()).Err, "two handlers")
	assert.ErrorContains(t, retrytest.Run(retrytest.Service{ConsumerHandler: returns(nil)}, nil).Err, "msg: missing")
}

func TestEndless(t *testing.T) {
	t.Parallel()

	endless := (*retrytest.EndlessError)(nil)
	r := play(retrytest.Service{ConsumerHandler: returns(retry.Postpone(time.Second)), MaxDeliveries: 100})
	require.ErrorAs(t, r.Err, &endless)
	assert.Equal(t, 100, endless.Deliveries)
	assert.Equal(t, 100*time.Second, endless.For)
	assert.Contains(t, r.Err.Error(), `no end after 100 deliveries in 1m40s, the last verdict was "postpone for 1s"`)
	assert.Contains(t, r.String(), "(60 more)")
	assert.Less(t, strings.Count(r.String(), "\n"), 45)

	r = play(retrytest.Service{
		ConsumerHandler: returns(errDown), Policy: config.Policy{Mode: config.ModeOff}, MaxDeliveries: 5,
	})
	require.ErrorAs(t, r.Err, &endless)
	r.AssertDelays(reporter{}, time.Second)
	assert.Equal(t, 5, r.Calls())
	assert.Equal(t, errDown, r.Steps[4].Err)
}

func TestEventsAreThoseOfTheMiddleware(t *testing.T) {
	t.Parallel()

	var kinds []retry.EventKind
	clock := retrytest.NewClock(start)
	play(retrytest.Service{
		Policy: twoRetries(), Clock: clock, ConsumerHandler: returns(retry.RetryAfter(9*time.Second, errDown), errDown),
		OnEvent: func(e retry.Event) {
			assert.Equal(t, clock.Now(), e.At)
			kinds = append(kinds, e.Kind)
		},
	}).AssertDeadLettered(t, retry.ReasonExhausted)
	assert.Equal(t, []retry.EventKind{
		retry.EventCall, retry.EventFailed, retry.EventRetried,
		retry.EventUnhandled, retry.EventPostponed, // not due yet
		retry.EventCall, retry.EventFailed, retry.EventRetried,
		retry.EventCall, retry.EventFailed, retry.EventDeadLettered,
	}, kinds)
}

// reporter keeps what an assertion says.
type reporter struct{ said *[]string }

func (reporter) Helper() {}
func (r reporter) Errorf(format string, args ...any) {
	if r.said != nil {
		*r.said = append(*r.said, fmt.Sprintf(format, args...))
	}
}

func TestAssertionsShowTheLife(t *testing.T) {
	t.Parallel()

	r := play(retrytest.Service{Policy: twoRetries(), Topic: "orders", ConsumerHandler: returns(errDown)})
	life := "\tmessage \"order-1\" of topic \"orders\": dead-lettered (exhausted) after 3 calls and 6s\n" +
		"\t  0s  attempt 1 of 3  the warehouse does not answer  retry 1 after 1s\n" +
		"\t  1s  attempt 2 of 3  the warehouse does not answer  retry 2 after 5s\n" +
		"\t  6s  attempt 3 of 3  the warehouse does not answer  dead-letter (exhausted)"

	said := []string{}
	to := reporter{&said}
	for wanted, holds := range map[string]bool{
		"succeeded at attempt 2":             r.AssertSucceeded(to, 2),
		"dead-lettered (permanent)":          r.AssertDeadLettered(to, retry.ReasonPermanent),
		"dropped":                            r.AssertDropped(to),
		"delays [1s 6s], found [1s 5s]":      r.AssertDelays(to, seconds(1, 6)...),
		"1 call":                             r.AssertCalls(to, 1),
		"delays [1s], found [1s 5s]":         r.AssertDelays(to, time.Second),
		"delays [1s 5s 0s], found [1s 5s]":   r.AssertDelays(to, seconds(1, 5, 0)...),
		"dead-lettered (postponed-too-long)": r.AssertDeadLettered(to, retry.ReasonPostponedTooLong),
	} {
		assert.False(t, holds)
		assert.True(t, slices.Contains(said, "wanted: "+wanted+"\n"+life), "%s: %q", wanted, said)
	}

	said = nil
	assert.True(t, r.AssertDeadLettered(to, retry.ReasonExhausted))
	assert.True(t, r.AssertDelays(to, seconds(1, 5)...))
	assert.Empty(t, said)

	assert.False(t, play(retrytest.Service{}).AssertCalls(to, 0))
	assert.Contains(t, said[0], "nothing was run: Service.Handler: missing")
	said = nil
	assert.False(t, retrytest.Result{}.AssertDropped(to))
	assert.Equal(t, []string{"wanted: dropped\n\tnothing was run"}, said)
}

// The dead letter is what its own handler would be called with.
func TestTheDeadLetterIsWhatItsHandlerGets(t *testing.T) {
	t.Parallel()

	r := retrytest.Run(retrytest.Service{
		Policy: config.Policy{Mode: config.ModeDeadLetter}, HandlerName: "ship",
		ConsumerHandler: func(*message.Message) error { return errors.New("boom") },
	}, message.NewMessage("1", []byte("{}")))
	require.NotNil(t, r.DeadLetter)

	msg := r.DeadLetter.Message
	deadLetter, ok := retry.DeadLetterFromContext(msg.Context())
	require.True(t, ok)
	assert.Equal(t, r.DeadLetter.DeadLetter, deadLetter)
	assert.Equal(t, []string{"exhausted", "boom", "ship"}, []string{string(deadLetter.Reason), deadLetter.Error,
		deadLetter.Handler})
	assert.Equal(t, message.Metadata{
		"reason_poisoned": "boom", "topic_poisoned": "topic", "handler_poisoned": "ship",
		"subscriber_poisoned": "amqpretry.Subscriber",
	}, msg.Metadata)
}
