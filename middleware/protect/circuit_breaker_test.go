package protect_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/retry"
)

// afterFailures are settings of a breaker that opens after n failures, for 30 s.
func afterFailures(n uint32) gobreaker.Settings {
	return gobreaker.Settings{
		Timeout:     30 * time.Second,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= n },
	}
}

func breaker(t *testing.T, settings gobreaker.Settings) *protect.CircuitBreaker {
	t.Helper()
	b, err := protect.NewCircuitBreaker(protect.CircuitBreakerConfig{Settings: settings})
	require.NoError(t, err)

	return b
}

// opinion is an error that says for itself whether it is worth a retry.
type opinion bool

func (opinion) Error() string     { return "an opinion" }
func (o opinion) Retryable() bool { return bool(o) }

func TestBreakerOpensAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handler{err: errBoom}
		guarded := breaker(t, afterFailures(2)).Middleware(h.handle)

		assert.Equal(t, errBoom, call(guarded, fresh()), "a closed breaker is not noticed")
		assert.Equal(t, errBoom, call(guarded, fresh()))
		for range 5 {
			err := call(guarded, fresh())
			assert.Equal(t, 30*time.Second, postponedFor(t, err))
			assert.ErrorIs(t, err, gobreaker.ErrOpenState)
			assert.ErrorContains(t, err, "circuit breaker is open: postponed for 30s")
		}
		assert.Equal(t, 2, h.calls, "not tried while it is open")

		wait(30*time.Second + 1)
		assert.Equal(t, errBoom, call(guarded, fresh()), "half-open: tried once")
		postponedFor(t, call(guarded, fresh()))
		assert.Equal(t, 3, h.calls)

		wait(30*time.Second + 1)
		h.err = nil
		for range 3 {
			require.NoError(t, call(guarded, fresh()))
		}
		assert.Equal(t, 6, h.calls)
	})
}

func TestBreakerTimes(t *testing.T) {
	for name, test := range map[string]struct {
		config protect.CircuitBreakerConfig
		want   time.Duration
	}{
		"the default": {protect.CircuitBreakerConfig{}, time.Minute},
		"the breaker's": {protect.CircuitBreakerConfig{Settings: gobreaker.Settings{Timeout: time.Second}},
			time.Second},
		"one of its own": {protect.CircuitBreakerConfig{Postpone: time.Hour,
			Settings: gobreaker.Settings{Timeout: time.Second}}, time.Hour},
		"one without settings": {protect.CircuitBreakerConfig{Postpone: time.Hour}, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := protect.NewCircuitBreaker(test.config)
			require.NoError(t, err)
			guarded := b.Middleware((&handler{err: errBoom}).handle)
			for range 6 { // gobreaker's own default: more than 5 in a row
				require.Equal(t, errBoom, call(guarded, fresh()))
			}
			assert.Equal(t, test.want, postponedFor(t, call(guarded, fresh())))
		})
	}
}

// gobreaker's default timeout is not exported: if it changes, so must ours.
func TestDefaultBreakerTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := gobreaker.NewCircuitBreaker(gobreaker.Settings{ReadyToTrip: func(gobreaker.Counts) bool { return true }})
		_, _ = b.Execute(func() (any, error) { return nil, errBoom })
		wait(time.Minute)
		assert.Equal(t, gobreaker.StateOpen, b.State())
		wait(1)
		assert.Equal(t, gobreaker.StateHalfOpen, b.State())
	})
}

func TestWhatCountsAsFailure(t *testing.T) {
	for name, test := range map[string]struct {
		err     error
		failure bool
	}{
		"none":                  {nil, false},
		"an error":              {errBoom, true},
		"Permanent":             {retry.Permanent(errBoom), false},
		"Permanent, wrapped":    {fmt.Errorf("order: %w", retry.Permanent(errBoom)), false},
		"Drop":                  {retry.Drop(errBoom), false},
		"Postpone":              {retry.Postpone(time.Second), false},
		"RetryAfter":            {retry.RetryAfter(time.Second, errBoom), true},
		"Transient":             {retry.Transient(errBoom), true},
		"Transient(Permanent)":  {retry.Transient(retry.Permanent(errBoom)), true},
		"Permanent(Transient)":  {retry.Permanent(retry.Transient(errBoom)), false},
		"Retryable() false":     {opinion(false), false},
		"Retryable() true":      {opinion(true), true},
		"a nil pointer":         {(*pointerError)(nil), true},
		"the end of a deadline": {context.DeadlineExceeded, true},
		"a cancellation":        {context.Canceled, true}, // the handler's own: the message was not taken away
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, !test.failure, protect.IsSuccessful(test.err))

			guarded := breaker(t, afterFailures(1)).Middleware((&handler{err: test.err}).handle)
			assert.Equal(t, test.err, call(guarded, fresh()), "it is the very error that the handler has returned")
			if err := call(guarded, fresh()); test.failure {
				assert.ErrorIs(t, err, gobreaker.ErrOpenState)
			} else {
				assert.Equal(t, test.err, err)
			}
		})
	}
}

func TestSettingsDecideWhatCounts(t *testing.T) {
	settings := afterFailures(1)
	settings.IsSuccessful = func(err error) bool { return err == nil || errors.Is(err, errBoom) }
	guarded := breaker(t, settings).Middleware((&handler{err: errBoom}).handle)
	for range 3 {
		assert.Equal(t, errBoom, call(guarded, fresh()))
	}

	guarded = breaker(t, settings).Middleware((&handler{err: retry.Permanent(errors.New("other"))}).handle)
	require.ErrorIs(t, call(guarded, fresh()), retry.ErrPermanent)
	assert.ErrorIs(t, call(guarded, fresh()), gobreaker.ErrOpenState, "they win against the marks")
}

// The policy's lists are not asked, but can be.
func TestSettingsAskThePolicy(t *testing.T) {
	policy := config.Policy{NeverRetry: []config.ErrorMatch{config.Is(errBoom)}}
	settings := afterFailures(1)
	settings.IsSuccessful = func(err error) bool { // as in docs/how-to/protect-a-dependency.md
		return protect.IsSuccessful(err) ||
			slices.ContainsFunc(policy.NeverRetry, func(m config.ErrorMatch) bool { return m.Match(err) })
	}
	h := &handler{err: errBoom}
	guarded := breaker(t, settings).Middleware(h.handle)
	for range 3 {
		require.Equal(t, errBoom, call(guarded, fresh()))
	}
	h.err = errors.New("other")
	require.Equal(t, h.err, call(guarded, fresh()))
	assert.ErrorIs(t, call(guarded, fresh()), gobreaker.ErrOpenState)
}

// A lost connection takes all messages away at once: that says nothing of what the handlers depend
// on.
func TestWithdrawnMessagesDoNotOpen(t *testing.T) {
	guarded := breaker(t, afterFailures(1)).Middleware(func(msg *message.Message) ([]*message.Message, error) {
		<-msg.Context().Done()
		return nil, msg.Context().Err()
	})
	gone := func() *message.Message {
		d := newDelivery(twoRetries)
		d.withdrawn = true
		msg := newMessage(d, "payload")
		ctx, cancel := context.WithCancelCause(msg.Context())
		cancel(errors.New("the connection was lost"))
		msg.SetContext(ctx)

		return msg
	}
	for range 3 {
		require.ErrorIs(t, call(guarded, gone()), context.Canceled)
	}

	// A timeout is another matter, wherever it is.
	for name, guarded := range map[string]message.HandlerFunc{
		"outside": wmmiddleware.Timeout(time.Millisecond)(guarded),
		"inside":  breaker(t, afterFailures(1)).Middleware(wmmiddleware.Timeout(time.Millisecond)(waitsForEnd)),
	} {
		require.ErrorIs(t, call(guarded, fresh()), context.DeadlineExceeded, name)
		assert.ErrorIs(t, call(guarded, fresh()), gobreaker.ErrOpenState, name)
	}
}

// Watermill's Timeout leaves its ended context on a message that Watermill's Retry tries again:
// those failures count all the same.
func TestFailuresAfterATimeoutOpen(t *testing.T) {
	for name, order := range map[string]func(breaker message.HandlerMiddleware,
		h message.HandlerFunc) message.HandlerFunc{
		"around the breaker": func(b message.HandlerMiddleware, h message.HandlerFunc) message.HandlerFunc {
			return wmmiddleware.Timeout(time.Minute)(b(h))
		},
		"inside of it": func(b message.HandlerMiddleware, h message.HandlerFunc) message.HandlerFunc {
			return b(wmmiddleware.Timeout(time.Minute)(h))
		},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			failing := func(*message.Message) ([]*message.Message, error) { calls++; return nil, errors.New("down") }
			retry := wmmiddleware.Retry{MaxRetries: 5, InitialInterval: time.Microsecond}
			guarded := retry.Middleware(order(breaker(t, afterFailures(3)).Middleware, failing))
			require.ErrorIs(t, call(guarded, fresh()), gobreaker.ErrOpenState)
			assert.Equal(t, 3, calls)
		})
	}
}

func waitsForEnd(msg *message.Message) ([]*message.Message, error) {
	<-msg.Context().Done()
	return nil, msg.Context().Err()
}

func panics(value any) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) { panic(value) }
}

func panicOf(f func()) (value any) {
	defer func() { value = recover() }()
	f()

	return nil
}

func TestBreakerPassesPanicsOn(t *testing.T) {
	for name, value := range map[string]any{"a text": "boom", "an error": errBoom, "not comparable": []int{1}} {
		t.Run(name, func(t *testing.T) {
			guarded := breaker(t, afterFailures(1)).Middleware(panics(value))
			assert.Equal(t, value, panicOf(func() { _, _ = guarded(fresh()) }))
			assert.ErrorIs(t, call(guarded, fresh()), gobreaker.ErrOpenState, "a panic is a failure")
		})
	}

	t.Run("with the handler's stack", func(t *testing.T) {
		var failed error
		engine := &engine.Engine{Decide: func(f retry.Failure) error {
			failed = f.Err
			return f.Err
		}}
		d := newDelivery(twoRetries)
		d.engine = engine
		require.NoError(t, call(middleware.Retry{}.Middleware(breaker(t, afterFailures(9)).Middleware(panicsFarBelow)),
			newMessage(d, "")))

		var panicked *retry.PanicError
		require.ErrorAs(t, failed, &panicked)
		assert.Equal(t, "far below", panicked.Value)
		assert.Contains(t, string(panicked.Stack), "panicsFarBelow")
		assert.Equal(t, retry.ActionRetry, d.settled[0].Action)
	})
}

func panicsFarBelow(*message.Message) ([]*message.Message, error) { panic("far below") }

// gobreaker waits for the end of the call that it lets pass while it is half-open, and does not see
// a Goexit.
func TestGoexitWhileHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handler{err: errBoom}
		exits := false
		guarded := breaker(t, afterFailures(1)).Middleware(func(msg *message.Message) ([]*message.Message, error) {
			if exits {
				runtime.Goexit()
			}

			return h.handle(msg)
		})
		require.Equal(t, errBoom, call(guarded, fresh()))
		wait(31 * time.Second)

		exits = true
		d := newDelivery(twoRetries)
		assert.True(t, endsGoroutine(func() { _, _ = retried(guarded)(newMessage(d, "")) }), "nobody stops it")
		require.Len(t, d.settled, 1)
		assert.Equal(t, retry.ActionRetry, d.settled[0].Action, "the retry middleware saw it as what it is")

		exits, h.err = false, nil
		require.ErrorIs(t, call(guarded, fresh()), gobreaker.ErrOpenState, "and the breaker as a failure")
		wait(31 * time.Second)
		require.NoError(t, call(guarded, fresh()), "it is not stuck")
	})
}

func TestHalfOpenUnderConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settings := afterFailures(1)
		settings.MaxRequests = 3
		var fails atomic.Bool
		var inside, most, calls atomic.Int32
		guarded := breaker(t, settings).Middleware(func(*message.Message) ([]*message.Message, error) {
			defer inside.Add(-1)
			if n := inside.Add(1); n > most.Load() {
				most.Store(n)
			}
			calls.Add(1)
			wait(time.Second)
			if fails.Load() {
				return nil, errBoom
			}

			return nil, nil
		})
		fails.Store(true)
		require.Equal(t, errBoom, call(guarded, fresh()))
		fails.Store(false)
		wait(31 * time.Second)
		calls.Store(0)
		most.Store(0)

		var wg sync.WaitGroup
		var postponed atomic.Int32
		for range 20 {
			wg.Go(func() {
				if err := call(guarded, fresh()); err != nil {
					assert.ErrorIs(t, err, gobreaker.ErrTooManyRequests)
					postponedFor(t, err)
					postponed.Add(1)
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 3, most.Load(), "MaxRequests try it")
		assert.EqualValues(t, 17, postponed.Load())
		require.NoError(t, call(guarded, fresh()), "and that closes it")
	})
}

// A breaker that is added twice asks itself: each has its own state, so that does not end in a
// deadlock.
func TestBreakerAddedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h := breaker(t, afterFailures(1)), &handler{err: errBoom}
		guarded := b.Middleware(b.Middleware(h.handle))
		require.Equal(t, errBoom, call(guarded, fresh()))
		require.ErrorIs(t, call(guarded, fresh()), gobreaker.ErrOpenState)
		h.err = nil
		wait(31 * time.Second)
		require.NoError(t, call(guarded, fresh()))
		require.NoError(t, call(guarded, fresh()))
	})
}

// Handlers of one router keep their breakers, and these their names.
func TestBreakerOfEachHandler(t *testing.T) {
	var mu sync.Mutex
	var changes []string
	settings := afterFailures(1)
	settings.OnStateChange = func(name string, _, to gobreaker.State) {
		mu.Lock()
		defer mu.Unlock()
		changes = append(changes, name+" "+to.String())
	}

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	pubsub := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	outcomes := map[string][]error{}
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			_, err := h(msg)
			name := message.HandlerNameFromCtx(msg.Context())
			mu.Lock()
			outcomes[name] = append(outcomes[name], err)
			mu.Unlock()

			return nil, nil
		}
	}, breaker(t, settings).Middleware)
	router.AddConsumerHandler("bad", "bad", pubsub, func(*message.Message) error { return errBoom })
	router.AddConsumerHandler("good", "good", pubsub, func(*message.Message) error { return nil })
	go func() { _ = router.Run(t.Context()) }()
	<-router.Running()
	for _, topic := range []string{"bad", "good", "bad", "good"} {
		require.NoError(t, pubsub.Publish(topic, message.NewMessage("", nil)))
	}
	require.NoError(t, router.Close())

	assert.Equal(t, []error{nil, nil}, outcomes["good"])
	require.Len(t, outcomes["bad"], 2)
	assert.Equal(t, errBoom, outcomes["bad"][0])
	assert.ErrorIs(t, outcomes["bad"][1], gobreaker.ErrOpenState)
	assert.Equal(t, []string{"bad open"}, changes)
}

func TestBreakerUnderRetry(t *testing.T) {
	open := func(h message.HandlerFunc) message.HandlerFunc {
		guarded := breaker(t, afterFailures(1)).Middleware(h)
		require.Equal(t, errBoom, call(guarded, fresh()))

		return guarded
	}
	fails := (&handler{err: errBoom}).handle

	t.Run("no attempt is used up", func(t *testing.T) {
		d := newDelivery(twoRetries)
		d.state.Count = 2 // the last one
		require.NoError(t, call(retried(open(fails)), newMessage(d, "")))
		require.Len(t, d.settled, 1)
		assert.Equal(t, retry.ActionPostpone, d.settled[0].Action)
		assert.Equal(t, 2, d.settled[0].Count)
	})
	t.Run("but of a failed try", func(t *testing.T) {
		d, h := newDelivery(twoRetries), &handler{err: errBoom}
		d.policy.Immediate = 5
		require.NoError(t, call(retried(breaker(t, afterFailures(3)).Middleware(h.handle)), newMessage(d, "")))
		assert.Equal(t, 3, h.calls, "it opens in the middle of them")
		assert.Equal(t, retry.ActionRetry, d.settled[0].Action)
		assert.Equal(t, 1, d.settled[0].Count)
		assert.Contains(t, d.state.Error, "boom")
	})
	t.Run("beyond MaxPostpone", func(t *testing.T) {
		d := newDelivery(twoRetries)
		d.policy.MaxPostpone, d.state.Since = time.Minute, time.Now().Add(-31*time.Second)
		require.NoError(t, call(retried(open(fails)), newMessage(d, "")))
		assert.Equal(t, retry.ReasonPostponedTooLong, d.settled[0].Reason)
	})
	t.Run("without retries", func(t *testing.T) {
		d := newDelivery(noRetries)
		d.policy.Immediate = 3
		require.NoError(t, call(retried(open(fails)), newMessage(d, "")))
		assert.Equal(t, retry.Verdict{Action: retry.ActionDeadLetter, Reason: retry.ReasonExhausted}, d.settled[0])
	})
	t.Run("in a shutdown", func(t *testing.T) {
		d := newDelivery(twoRetries)
		d.withdrawn = true
		require.Error(t, call(retried(open(fails)), newMessage(d, "")))
		assert.Equal(t, []retry.Verdict{{Action: retry.ActionRequeue}}, d.settled, "it goes back, uncounted")
	})
}

// A message that fails every time comes to its last attempt, although it keeps the breaker open: it
// must not do so for ever.
func TestPoisonMessageComesToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, middle := range map[string]message.HandlerMiddleware{
			"breaker":    breaker(t, afterFailures(1)).Middleware,
			"rate limit": limitOf(t, protect.RateLimitConfig{Limit: 1, Burst: 1, MaxWait: 1}).Middleware,
			"PostponeOn": func(h message.HandlerFunc) message.HandlerFunc {
				open := wmmiddleware.NewCircuitBreaker(afterFailures(1)).Middleware
				return protect.PostponeOn(time.Second, config.Is(gobreaker.ErrOpenState))(open(h))
			},
		} {
			h := &handler{err: errBoom}
			guarded := retried(middle(h.handle))
			d := newDelivery(twoRetries)
			d.policy.Immediate = 3
			count, lives := 0, 0
			for ; lives < 100; lives++ {
				next := newDelivery(d.policy)
				next.state.Count = count
				require.NoError(t, call(guarded, newMessage(next, "")))
				verdict := next.settled[0]
				if verdict.Action == retry.ActionDeadLetter {
					break
				}
				count = verdict.Count
				wait(verdict.Delay + time.Minute)
			}
			assert.Less(t, lives, 10, name)
			assert.Equal(t, 3, h.calls, "%s: one in each attempt", name)
		}
	})
}

// Inside of a breaker, what a limit postpones would be a success: a half-open breaker would close
// unseen.
func TestRateLimitBelongsOutsideOfBreaker(t *testing.T) {
	for name, test := range map[string]struct {
		inside bool
		states []gobreaker.State
	}{
		"outside": {false, []gobreaker.State{gobreaker.StateOpen}},
		"inside":  {true, []gobreaker.State{gobreaker.StateOpen, gobreaker.StateHalfOpen, gobreaker.StateClosed}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var states []gobreaker.State
			settings := afterFailures(1)
			settings.OnStateChange = func(_ string, _, to gobreaker.State) { states = append(states, to) }
			middle := []message.HandlerMiddleware{
				limitOf(t, protect.RateLimitConfig{Limit: 0.001, Burst: 1}).Middleware, breaker(t, settings).Middleware,
			}
			if test.inside {
				slices.Reverse(middle)
			}
			guarded := middle[0](middle[1]((&handler{err: errBoom}).handle))
			require.Equal(t, errBoom, call(guarded, fresh()))
			wait(31 * time.Second)
			require.ErrorIs(t, call(guarded, fresh()), protect.ErrRateLimited)
			assert.Equal(t, test.states, states, name)
		})
	}
}

// Watermill's Retry goes on trying whatever it gets: inside, it belongs to the call; outside, it
// has to be told.
func TestBreakerAndWatermillsRetry(t *testing.T) {
	quick := wmmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Microsecond}

	inside := &handler{err: errBoom}
	guarded := breaker(t, afterFailures(2)).Middleware(quick.Middleware(inside.handle))
	require.Equal(t, errBoom, call(guarded, fresh()))
	assert.Equal(t, 3, inside.calls, "three tries are one call to the breaker")
	require.Equal(t, errBoom, call(guarded, fresh()))
	assert.ErrorIs(t, call(guarded, fresh()), gobreaker.ErrOpenState)

	quick.ShouldRetry = func(p wmmiddleware.RetryParams) bool { return !errors.Is(p.Err, retry.ErrPostponed) }
	outside, tries := &handler{err: errBoom}, 0
	quick.OnRetryHook = func(int, time.Duration) { tries++ }
	guarded = quick.Middleware(breaker(t, afterFailures(2)).Middleware(outside.handle))
	assert.ErrorIs(t, call(guarded, fresh()), retry.ErrPostponed)
	assert.Equal(t, 2, outside.calls, "the open breaker ends them")
	assert.ErrorIs(t, call(guarded, fresh()), retry.ErrPostponed)
	assert.Equal(t, 1, tries, "at once")
}

func TestBreakerConfig(t *testing.T) {
	_, err := protect.NewCircuitBreaker(protect.CircuitBreakerConfig{
		Postpone: -1, Settings: gobreaker.Settings{Timeout: -time.Second, Interval: -1},
	})
	assert.Equal(t, []string{"CircuitBreakerConfig.Postpone", "CircuitBreakerConfig.Settings.Timeout",
		"CircuitBreakerConfig.Settings.Interval"}, fields(t, err))
	assert.ErrorContains(t, err, "CircuitBreakerConfig.Settings.Timeout: negative: must be more than 0, or 0 for the "+
		"default, got -1s")
}

func TestPostponeOn(t *testing.T) {
	middle := protect.PostponeOn(time.Minute, config.Is(errBoom), config.As[opinion]())
	for name, test := range map[string]struct {
		err       error
		postponed bool
	}{
		"none":                   {nil, false},
		"one of them":            {errBoom, true},
		"wrapped":                {fmt.Errorf("order: %w", errBoom), true},
		"by type":                {opinion(false), true},
		"another":                {errors.New("other"), false},
		"a nil pointer":          {(*pointerError)(nil), false},
		"marked by the handler":  {retry.Permanent(errBoom), false},
		"with a time of its own": {retry.RetryAfter(time.Hour, errBoom), false},
	} {
		t.Run(name, func(t *testing.T) {
			outputs := []*message.Message{message.NewMessage("", nil)}
			produced, err := middle(func(*message.Message) ([]*message.Message, error) {
				return outputs, test.err
			})(fresh())
			assert.Equal(t, outputs, produced)
			if test.postponed {
				assert.Equal(t, time.Minute, postponedFor(t, err))
				assert.ErrorIs(t, err, test.err)
			} else {
				assert.Equal(t, test.err, err)
			}
		})
	}
}

// One breaker for several handlers is Watermill's own, with PostponeOn around it.
func TestSharedBreaker(t *testing.T) {
	settings := afterFailures(1)
	settings.IsSuccessful = protect.IsSuccessful
	shared := wmmiddleware.NewCircuitBreaker(settings).Middleware
	postpone := protect.PostponeOn(30*time.Second, config.Is(gobreaker.ErrOpenState),
		config.Is(gobreaker.ErrTooManyRequests))
	first := postpone(shared((&handler{err: errBoom}).handle))
	other := &handler{}

	require.Equal(t, errBoom, call(first, fresh()))
	assert.Equal(t, 30*time.Second, postponedFor(t, call(postpone(shared(other.handle)), fresh())))
	assert.Zero(t, other.calls)
}
