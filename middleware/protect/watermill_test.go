package protect_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/retry"
)

// These tests look at single calls with the middlewares of docs/how-to/use-watermill-parts.md,
// whose table is tested in tests/watermill_middlewares_test.go.

// first handles a message for the first time, and gives the verdict.
func first(t *testing.T, h message.HandlerFunc) (retry.Verdict, *delivery) {
	t.Helper()
	d := newDelivery(twoRetries)
	require.NoError(t, call(retried(h), newMessage(d, "payload")))
	require.Len(t, d.settled, 1)

	return d.settled[0], d
}

func TestWatermillsThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle := wmmiddleware.NewThrottle(10, time.Second)
		one, other := throttle.Middleware((&handler{}).handle), throttle.Middleware((&handler{}).handle)
		began := time.Now()
		for range 10 {
			require.NoError(t, call(one, fresh()))
			require.NoError(t, call(other, fresh()))
		}
		assert.Equal(t, 2*time.Second, time.Since(began), "the handlers share it")

		ours := limited(t, protect.RateLimitConfig{Limit: 10, Burst: 1}, (&handler{}).handle)
		theirs := limited(t, protect.RateLimitConfig{Limit: 10, Burst: 1}, (&handler{}).handle)
		began = time.Now()
		for range 11 {
			require.NoError(t, call(ours, fresh()))
			require.NoError(t, call(theirs, fresh()))
		}
		assert.Equal(t, time.Second, time.Since(began).Round(time.Millisecond), "a RateLimit is each handler's own")

		h := &handler{err: errBoom}
		d := newDelivery(twoRetries)
		d.policy.Immediate = 2
		began = time.Now()
		require.NoError(t, call(retried(throttle.Middleware(h.handle)), newMessage(d, "")))
		assert.Equal(t, 3, h.calls)
		assert.Equal(t, 200*time.Millisecond, time.Since(began)-time.Since(began)%(100*time.Millisecond),
			"immediate tries wait for their turn as well")

		msg, cancel := cancellable(fresh())
		cancel()
		slow := wmmiddleware.NewThrottle(1, time.Hour)
		began = time.Now()
		require.NoError(t, call(slow.Middleware((&handler{}).handle), msg))
		assert.Equal(t, time.Hour, time.Since(began), "nothing ends its wait")
	})
}

func TestWatermillsTimeout(t *testing.T) {
	verdict, d := first(t, wmmiddleware.Timeout(time.Millisecond)(waitsForEnd))
	assert.Equal(t, retry.ActionRetry, verdict.Action, "its end is a failed attempt, and no shutdown")

	d.settled = nil
	slow := wmmiddleware.Timeout(time.Millisecond)(retried(waitsForEnd))
	require.NoError(t, call(slow, newMessage(d, "")))
	assert.Equal(t, retry.ActionRetry, d.settled[0].Action, "outside as well")
}

func TestWatermillsRetry(t *testing.T) {
	quick := wmmiddleware.Retry{MaxRetries: 3, InitialInterval: time.Microsecond}

	h := &handler{err: errBoom}
	verdict, _ := first(t, quick.Middleware(h.handle))
	assert.Equal(t, 4, h.calls)
	assert.Equal(t, 1, verdict.Count, "they are one attempt")

	h = &handler{err: retry.Permanent(errBoom)}
	verdict, _ = first(t, quick.Middleware(h.handle))
	assert.Equal(t, 4, h.calls, "it tries what no try can help, too")
	assert.Equal(t, retry.ReasonPermanent, verdict.Reason)

	quick.ShouldRetry = func(p wmmiddleware.RetryParams) bool {
		return !errors.Is(p.Err, retry.ErrPermanent) && !errors.Is(p.Err, retry.ErrDrop) &&
			!errors.Is(p.Err, retry.ErrPostponed)
	}
	h.calls = 0
	verdict, _ = first(t, quick.Middleware(h.handle))
	assert.Equal(t, 1, h.calls, "unless it is told")
	assert.Equal(t, retry.ReasonPermanent, verdict.Reason)
}

func TestWatermillsRecoverer(t *testing.T) {
	var failed error
	engine := &engine.Engine{Decide: func(f retry.Failure) error {
		failed = f.Err
		return f.Err
	}}
	d := newDelivery(noRetries)
	d.engine = engine
	require.NoError(t, call(middleware.Retry{}.Middleware(wmmiddleware.Recoverer(panics("boom"))), newMessage(d, "")))
	assert.Equal(t, retry.ReasonExhausted, d.settled[0].Reason, "and not panic")
	assert.Contains(t, failed.Error(), "goroutine ", "with its stack in the error's text")

	d = newDelivery(twoRetries)
	require.NoError(t, call(wmmiddleware.Recoverer(retried(panics("boom"))), newMessage(d, "")))
	assert.Equal(t, retry.ActionRetry, d.settled[0].Action, "outside it has nothing to do")
}

func TestWatermillsInstantAck(t *testing.T) {
	d := newDelivery(twoRetries)
	msg := newMessage(d, "")
	require.NoError(t, call(retried(wmmiddleware.InstantAck((&handler{err: errBoom}).handle)), msg))
	assert.Equal(t, retry.ActionRetry, d.settled[0].Action, "inside it has no effect: the verdict counts")
}

func TestWatermillsDuplicator(t *testing.T) {
	calls := 0
	verdict, d := first(t, wmmiddleware.Duplicator(func(*message.Message) ([]*message.Message, error) {
		calls++
		if calls == 2 {
			return nil, errBoom
		}

		return nil, nil
	}))
	assert.Equal(t, 1, verdict.Count, "both calls are one attempt")
	d.settled = nil
	require.NoError(t, call(retried(wmmiddleware.Duplicator((&handler{}).handle)), newMessage(d, "")))
	assert.True(t, d.succeeded)

	d, h := newDelivery(twoRetries), &handler{err: errBoom}
	require.NoError(t, call(wmmiddleware.Duplicator(retried(h.handle)), newMessage(d, "")))
	assert.Len(t, d.settled, 2, "outside, one delivery is handled and settled twice")
}

func TestWatermillsCorrelationID(t *testing.T) {
	handles := func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("", nil)}, nil
	}
	for name, h := range map[string]message.HandlerFunc{
		"inside": retried(wmmiddleware.CorrelationID(handles)), "outside": wmmiddleware.CorrelationID(retried(handles)),
	} {
		msg := fresh()
		wmmiddleware.SetCorrelationID("id", msg)
		produced, err := h(msg)
		require.NoError(t, err)
		assert.Equal(t, "id", wmmiddleware.MessageCorrelationID(produced[0]), name)
	}
}

func TestWatermillsIgnoreErrors(t *testing.T) {
	d := newDelivery(twoRetries)
	ignore := wmmiddleware.NewIgnoreErrors([]error{errBoom})
	require.NoError(t, call(retried(ignore.Middleware((&handler{err: errBoom}).handle)), newMessage(d, "")))
	assert.True(t, d.succeeded, "what it ignores is handled")
	assert.Empty(t, d.settled)
}

func TestWatermillsCircuitBreaker(t *testing.T) {
	alone := wmmiddleware.NewCircuitBreaker(afterFailures(1)).Middleware((&handler{err: errBoom}).handle)
	require.Equal(t, errBoom, call(alone, fresh()))
	verdict, _ := first(t, alone)
	assert.Equal(t, 1, verdict.Count, "open, it uses up an attempt")
	require.ErrorIs(t, call(alone, fresh()), gobreaker.ErrOpenState)
}

// failingOnce is a publisher that fails its first messages.
type failingOnce struct{ calls, published int }

func (p *failingOnce) Publish(_ string, messages ...*message.Message) error {
	if p.calls++; p.calls == 1 {
		return errBoom
	}
	p.published += len(messages)

	return nil
}

func (*failingOnce) Close() error { return nil }

// A fact about Watermill: its decorator takes an output for published before it is. The retry's
// equal output is dropped, as a success.
func TestWatermillsDeduplicatingPublisherLosesOutputs(t *testing.T) {
	publisher := &failingOnce{}
	decorated, err := (&wmmiddleware.Deduplicator{}).PublisherDecorator()(publisher)
	require.NoError(t, err)

	require.Error(t, decorated.Publish("topic", message.NewMessage("first", []byte("output"))))
	require.NoError(t, decorated.Publish("topic", message.NewMessage("retry", []byte("output"))))
	assert.Zero(t, publisher.published)
}
