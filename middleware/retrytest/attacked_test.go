package retrytest_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/retry"
)

// run plays the life of a message whose handler is h.
func run(h message.NoPublishHandlerFunc) retrytest.Result {
	return play(retrytest.Service{Policy: twoRetries(), ConsumerHandler: h})
}

func play(s retrytest.Service) retrytest.Result { return retrytest.Run(s, newMessage()) }

// around is a middleware.
func around(h func(message.HandlerFunc, *message.Message) ([]*message.Message, error)) []message.HandlerMiddleware {
	return []message.HandlerMiddleware{func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) { return h(next, msg) }
	}}
}

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text } // panics for nil

func TestHandlersOfTheWorstKind(t *testing.T) {
	t.Parallel()

	t.Run("panics", func(t *testing.T) {
		t.Parallel()
		r := run(func(*message.Message) error { panic("at the disco") })
		r.AssertDeadLettered(t, retry.ReasonPanic)
		assert.Equal(t, "handler panicked: at the disco", r.DeadLetter.Error)
		assert.Equal(t, retry.ReasonPanic, r.DeadLetter.History[0].Reason)

		panicking := func(*message.Message) error { panic(nil) } //nolint:govet // nilness: that is the point
		run(panicking).AssertDeadLettered(t, retry.ReasonPanic)
		run(func(*message.Message) error { panic(retry.Drop(errDown)) }).AssertDropped(t)
	})

	t.Run("shows its stack", func(t *testing.T) {
		t.Parallel()
		r := play(retrytest.Service{
			PanicStacks: true, ConsumerHandler: func(*message.Message) error { panic("at the disco") },
		})
		assert.Contains(t, r.DeadLetter.Error, "attacked_test.go")
		for line := range strings.SplitSeq(r.String(), "\n") {
			assert.NotContains(t, line, "goroutine", "one line for each step")
		}
	})

	t.Run("ends its goroutine, as require does", func(t *testing.T) {
		t.Parallel()
		r := run(func(*message.Message) error { runtime.Goexit(); return nil })
		r.AssertDeadLettered(t, retry.ReasonExhausted)
		r.AssertCalls(t, 3)
	})

	t.Run("ends its goroutine under policy off", func(t *testing.T) {
		t.Parallel()
		s := retrytest.Service{Policy: config.Policy{Mode: config.ModeOff}}
		s.ConsumerHandler = func(*message.Message) error { runtime.Goexit(); return nil }
		require.ErrorContains(t, play(s).Err, "runtime.Goexit")

		s.ConsumerHandler, s.MaxDeliveries = func(*message.Message) error { panic("oh") }, 3
		require.ErrorAs(t, play(s).Err, new(*retrytest.EndlessError))

		calls := 0
		s.ConsumerHandler = func(*message.Message) error { calls++; return nil }
		s.Faults = map[int]retrytest.Fault{1: retrytest.Crash}
		r := play(s)
		assert.Equal(t, retrytest.Succeeded, r.End)
		assert.Equal(t, 2, calls)
		assert.Contains(t, r.String(), "the process died")
	})

	t.Run("answers by itself", func(t *testing.T) {
		t.Parallel()
		run(func(msg *message.Message) error { msg.Ack(); return nil }).AssertSucceeded(t, 1)
		for _, h := range []message.NoPublishHandlerFunc{
			func(msg *message.Message) error { msg.Ack(); return errDown },
			func(msg *message.Message) error { msg.Nack(); return errDown },
			func(msg *message.Message) error { msg.Nack(); return nil },
		} {
			run(h).AssertDeadLettered(t, retry.ReasonExhausted)
		}
	})

	t.Run("keeps and changes its message", func(t *testing.T) {
		t.Parallel()
		var kept []*message.Message
		original := message.NewMessage("order-1", []byte("{}"))
		original.Metadata.Set("tenant", "acme")
		r := retrytest.Run(retrytest.Service{Policy: twoRetries(), ConsumerHandler: func(msg *message.Message) error {
			assert.Equal(t, "{}", string(msg.Payload))
			assert.Equal(t, message.Metadata{"tenant": "acme"}, msg.Metadata)
			assert.NoError(t, msg.Context().Err())
			for _, m := range append(kept, msg) {
				m.Payload[0], m.UUID = 'X', "mine"
				m.Metadata["tenant"], m.Metadata["amqpretry-count"] = "mine", "1"
				m.SetContext(context.Background())
			}
			kept = append(kept, msg)

			return errDown
		}}, original)
		r.AssertDeadLettered(t, retry.ReasonExhausted)
		assert.Equal(t, "{}", string(r.DeadLetter.Message.Payload))
		assert.Equal(t, "acme", r.DeadLetter.Message.Metadata["tenant"])
		assert.Equal(t, "order-1", r.DeadLetter.Message.UUID)
		assert.Equal(t, "{}", string(original.Payload))
		for _, msg := range append(kept, original) {
			msg.Nack() // long after
		}
		select {
		case <-original.Acked():
			t.Error("somebody has acknowledged the original")
		default:
		}
	})

	t.Run("has outputs that are none", func(t *testing.T) {
		t.Parallel()
		play(retrytest.Service{Policy: twoRetries(), Handler: func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{nil}, nil
		}}).AssertDeadLettered(t, retry.ReasonUnpublishable) // a router panics over it
	})

	t.Run("returns an error that panics", func(t *testing.T) {
		t.Parallel()
		r := run(func(*message.Message) error { return (*nilError)(nil) })
		r.AssertDeadLettered(t, retry.ReasonExhausted)
		assert.Contains(t, r.String(), "(the error's text is lost: it panicked with runtime.errorString)")
	})

	t.Run("returns an error of many lines", func(t *testing.T) {
		t.Parallel()
		r := run(func(*message.Message) error { return errors.New("one\ttwo\nthree\x00" + strings.Repeat("x", 9999)) })
		assert.Contains(t, r.String(), "one two …  retry 1 after 1s")
	})

	t.Run("forges", func(t *testing.T) {
		t.Parallel()
		msg := newMessage()
		msg.Metadata["amqpretry-v"], msg.Metadata["amqpretry-queue"], msg.Metadata["amqpretry-count"] = "1", "topic",
			"-1"
		r := retrytest.Run(retrytest.Service{Policy: twoRetries(), ConsumerHandler: returns(errDown)}, msg)
		assert.Equal(t, 0, r.Steps[0].Attempt.Replays, "a publisher strips it")
	})
}

// A middleware that makes the message anew takes the context away from its handler, and nothing
// else.
func TestMessageMadeAnew(t *testing.T) {
	t.Parallel()

	r := play(retrytest.Service{
		Policy: twoRetries(), Faults: map[int]retrytest.Fault{1: retrytest.Crash}, ConsumerHandler: returns(errDown),
		Middlewares: around(func(h message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
			return h(msg.Copy())
		}),
	})
	r.AssertDeadLettered(t, retry.ReasonExhausted)
	r.AssertCalls(t, 4)
}

// A handler runs in a goroutine that its middleware has left behind.
func TestLateHandler(t *testing.T) {
	t.Parallel()

	release, done := make(chan struct{}), make(chan struct{})
	var left sync.WaitGroup
	r := play(retrytest.Service{
		Policy: twoRetries(),
		ConsumerHandler: func(msg *message.Message) error {
			<-release
			_, _ = retry.AttemptFromContext(msg.Context())
			msg.Ack()

			return errDown
		},
		Middlewares: around(func(h message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
			mine := msg.CopyWithContext() // it belongs to the other goroutine
			left.Go(func() { _, _ = h(mine) })
			return nil, errors.New("too slow")
		}),
	})
	before := r.String()
	close(release)
	go func() { left.Wait(); close(done) }()
	<-done

	r.AssertDeadLettered(t, retry.ReasonExhausted)
	assert.Equal(t, before, r.String(), "a life that has ended does not change")
}

func TestMessagesOfTheWorstKind(t *testing.T) {
	t.Parallel()

	s := retrytest.Service{Policy: twoRetries(), ConsumerHandler: returns(errDown)}
	r := retrytest.Run(s, &message.Message{})
	r.AssertDeadLettered(t, retry.ReasonExhausted)
	assert.NotEmpty(t, r.DeadLetter.Headers["amqpretry-uuid"], "made at the first failure")
	assert.Equal(t, r.DeadLetter.Headers["amqpretry-uuid"], r.DeadLetter.Message.UUID)

	uuids := map[string]bool{}
	s.ConsumerHandler = func(msg *message.Message) error { uuids[msg.UUID] = true; return errDown }
	retrytest.Run(s, &message.Message{})
	assert.Len(t, uuids, 2, "none, and then always the same")

	answered := newMessage()
	answered.Nack()
	s.ConsumerHandler = returns(nil)
	retrytest.Run(s, answered).AssertSucceeded(t, 1)
}

func TestHooksOfTheWorstKind(t *testing.T) {
	t.Parallel()

	r := play(retrytest.Service{
		Policy: twoRetries(), ConsumerHandler: returns(errDown),
		Decide:    func(retry.Failure) error { panic("no opinion") },
		ErrorText: func(error) string { panic("no words") },
		OnEvent:   func(retry.Event) { panic("no ears") },
	})
	r.AssertDeadLettered(t, retry.ReasonExhausted)
	r.AssertDelays(t, seconds(1, 5)...)
	assert.Contains(t, r.DeadLetter.Error, "text is lost")
}

// A hook that ends its goroutine, as require does, leaves the message without a verdict: it comes
// back at once, as on a broker.
func TestHooksThatEndTheirGoroutine(t *testing.T) {
	t.Parallel()

	s := retrytest.Service{
		ConsumerHandler: returns(errDown), MaxDeliveries: 5,
		Decide: func(retry.Failure) error { runtime.Goexit(); return nil },
	}
	r := play(s)
	require.ErrorAs(t, r.Err, new(*retrytest.EndlessError))
	assert.Len(t, r.Steps, 5)

	// In the goroutine of Run, it ends that, and the router is closed.
	s.Decide, s.Unmarshal = nil, func(*message.Message) error { runtime.Goexit(); return nil }
	var wg sync.WaitGroup
	wg.Go(func() { play(s); t.Error("it goes on") })
	wg.Wait()
}

// A service is a value: it can be run at the same time, with a clock of its own for each.
func TestConcurrentRuns(t *testing.T) {
	t.Parallel()

	s := retrytest.Service{Policy: twoRetries(), ConsumerHandler: func(*message.Message) error { return errDown }}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			r := play(s)
			r.AssertDelays(t, seconds(1, 5)...)
			assert.Equal(t, 6*time.Second, r.Ended.Sub(r.Began))
			r.Replay(s).AssertDeadLettered(t, retry.ReasonExhausted)
		})
	}
	wg.Wait()
}

// A router that closes before it has seen a message must not wait for one.
func TestNoMessageForTheRouter(t *testing.T) {
	t.Parallel()

	for range 50 {
		play(retrytest.Service{
			ConsumerHandler: returns(nil), Unmarshal: func(*message.Message) error { return errDown },
		}).AssertDeadLettered(t, retry.ReasonUndecodable)
	}
}

// A middleware that answers for a handler whose process has died is dead as well.
func TestNothingComesAfterACrash(t *testing.T) {
	t.Parallel()

	r := play(retrytest.Service{
		Policy: twoRetries(), Faults: map[int]retrytest.Fault{1: retrytest.Crash},
		Handler: func(*message.Message) ([]*message.Message, error) { return nil, nil },
		Middlewares: around(func(h message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = h(msg) })
			wg.Wait()

			return message.Messages{message.NewMessage("output", nil)}, nil
		}),
	})
	r.AssertSucceeded(t, 1)
	r.AssertCalls(t, 2)
	assert.Len(t, r.Outputs, 1, "of the second call")
}

// A handler may play a life of its own.
func TestNestedRuns(t *testing.T) {
	t.Parallel()

	outer := run(func(*message.Message) error {
		inner := run(func(*message.Message) error { return errDown })
		inner.AssertCalls(t, 3)

		return errDown
	})
	outer.AssertCalls(t, 3)
}

func TestClock(t *testing.T) {
	t.Parallel()

	clock := retrytest.NewClock(start)
	clock.Advance(time.Minute)
	clock.Advance(-time.Hour)
	assert.Equal(t, start.Add(time.Minute), clock.Now())

	zero := &retrytest.Clock{}
	assert.WithinDuration(t, time.Now(), zero.Now(), time.Minute)
	first := zero.Now()
	assert.Equal(t, first, zero.Now(), "it stands still")
	assert.Zero(t, zero.Now().Nanosecond())
	assert.Equal(t, zero.Now().Add(time.Second), func() time.Time { zero.Advance(time.Second); return zero.Now() }())

	var never retrytest.Clock
	never.Advance(time.Hour)
	assert.Greater(t, time.Until(never.Now()), 50*time.Minute)

	play(retrytest.Service{
		Policy:          config.Policy{Delays: []time.Duration{config.MaxDelay}, Retries: 300},
		ConsumerHandler: returns(errDown),
	}).AssertDeadLettered(t, retry.ReasonExhausted) // three thousand years later
}
