package protect_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/retry"
)

func limitOf(t *testing.T, c protect.RateLimitConfig) *protect.RateLimit {
	t.Helper()
	l, err := protect.NewRateLimit(c)
	require.NoError(t, err)

	return l
}

func limited(t *testing.T, c protect.RateLimitConfig, h message.HandlerFunc) message.HandlerFunc {
	t.Helper()
	return limitOf(t, c).Middleware(h)
}

func TestRateLimitWaitsInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, h := time.Now(), &handler{}
		guarded := limited(t, protect.RateLimitConfig{Limit: 10, Burst: 3}, h.handle)
		for range 8 {
			require.NoError(t, call(guarded, fresh()))
		}
		assert.Equal(t, 500*time.Millisecond, time.Since(began).Round(time.Millisecond), "three at once, five more "+
			"at their turns")
		assert.Equal(t, 8, h.calls)
	})
}

// What comes from the handler is passed on as it is.
func TestRateLimitPassesOn(t *testing.T) {
	outputs := []*message.Message{message.NewMessage("", nil)}
	guarded := limited(t, protect.RateLimitConfig{Limit: rate.Inf, Burst: 1},
		func(*message.Message) ([]*message.Message, error) {
			return outputs, errBoom
		})
	for range 100 { // and a limit that is none
		produced, err := guarded(fresh())
		assert.Equal(t, errBoom, err)
		assert.Equal(t, outputs, produced)
	}
}

func TestRateLimitPostpones(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handler{}
		guarded := limited(t, protect.RateLimitConfig{Limit: 1, Burst: 1, MaxWait: 500 * time.Millisecond}, h.handle)
		require.NoError(t, call(guarded, fresh()))

		for i := range 5 { // each gets a turn of its own
			err := call(guarded, fresh())
			assert.Equal(t, time.Duration(i+1)*time.Second, postponedFor(t, err).Round(time.Millisecond))
			assert.ErrorIs(t, err, protect.ErrRateLimited)
		}
		assert.Equal(t, 1, h.calls)

		wait(time.Second)
		began := time.Now()
		require.NoError(t, call(guarded, fresh()))
		assert.Zero(t, time.Since(began), "they have taken nobody's turn")

		wait(time.Hour)
		require.NoError(t, call(guarded, fresh()))
		assert.Equal(t, time.Second, postponedFor(t, call(guarded, fresh())), "and none once those turns are over")
	})
}

// However many are refused, and however many ask at once, the rate is kept and used in full.
func TestRateLimitUnderConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, refused atomic.Int32
		guarded := limited(t, protect.RateLimitConfig{Limit: 100, Burst: 5, MaxWait: 20 * time.Millisecond},
			func(*message.Message) ([]*message.Message, error) {
				calls.Add(1)
				return nil, nil
			})
		var wg sync.WaitGroup
		end := time.Now().Add(4 * time.Second)
		for range 20 {
			wg.Go(func() {
				for time.Now().Before(end) {
					if call(guarded, fresh()) != nil {
						refused.Add(1)
						wait(time.Millisecond)
					}
				}
			})
		}
		wg.Wait()
		assert.Greater(t, refused.Load(), calls.Load())
		assert.InDelta(t, 400+5, calls.Load(), 4)
	})
}

func TestRateLimitBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []rate.Limit{1.0 / 86400, 1e-12, math.SmallestNonzeroFloat64} {
			guarded := limited(t, protect.RateLimitConfig{Limit: limit, Burst: 1}, (&handler{}).handle)
			require.NoError(t, call(guarded, fresh()))
			for range 10 {
				assert.Equal(t, time.Hour, postponedFor(t, call(guarded, fresh())), "it looks again before long")
			}
		}

		guarded := limited(t, protect.RateLimitConfig{Limit: 2, Burst: 1, MaxWait: 1}, (&handler{}).handle)
		var last error
		for range 10_000 { // an hour and a half of turns
			last = call(guarded, fresh())
		}
		assert.Equal(t, time.Hour, postponedFor(t, last))
	})
}

func TestShutdownEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handler{}
		guarded := limited(t, protect.RateLimitConfig{Limit: 0.1, Burst: 1, MaxWait: time.Minute}, h.handle)
		require.NoError(t, call(guarded, fresh()))

		d := newDelivery(twoRetries)
		msg := newMessage(d, "")
		ctx, cancel := context.WithCancelCause(msg.Context())
		msg.SetContext(ctx)
		time.AfterFunc(time.Second, func() {
			d.withdrawn = true
			cancel(errors.New("closing"))
		})
		began := time.Now()
		require.Error(t, call(retried(guarded), msg), "nacked")
		assert.Equal(t, time.Second, time.Since(began))
		assert.Equal(t, []retry.Verdict{{Action: retry.ActionRequeue}}, d.settled, "nothing is counted")
		assert.Equal(t, 1, h.calls)

		require.NoError(t, call(guarded, fresh()))
		assert.Equal(t, 10*time.Second, time.Since(began), "its turn was given back")
	})
}

// A Timeout outside is the time that there is to wait, and its end no failure of the handler, which
// was not called.
func TestTimeoutOutsideOfRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handler{}
		guarded := wmmiddleware.Timeout(2 * time.Second)(limited(t, protect.RateLimitConfig{Limit: 0.1, Burst: 1,
			MaxWait: time.Minute}, h.handle))
		require.NoError(t, call(guarded, fresh()))
		began := time.Now()
		assert.Equal(t, 10*time.Second, postponedFor(t, call(guarded, fresh())))
		assert.Zero(t, time.Since(began), "it cannot be in time, so it does not wait")
	})
}

func TestRateLimitAndDeadlineOfTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handler{}
		guarded := limited(t, protect.RateLimitConfig{Limit: 0.1, Burst: 1, MaxWait: time.Minute}, h.handle)
		require.NoError(t, call(guarded, fresh()))

		d := newDelivery(twoRetries)
		d.state.Deadline = time.Now().Add(5 * time.Second)
		require.NoError(t, call(retried(guarded), newMessage(d, "")))
		assert.Equal(t, retry.ReasonExpired, d.settled[0].Reason)
		assert.Equal(t, 1, h.calls, "no handler gets an expired message")
	})
}

// Where nothing can be postponed, a message waits as long as it takes: it would be a dead letter,
// or come back at once.
func TestRateLimitWithoutRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, msg := range map[string]*message.Message{
			"mode dead-letter":  newMessage(newDelivery(noRetries), ""),
			"not the retrier's": message.NewMessage("", nil),
		} {
			h := &handler{}
			guarded := limited(t, protect.RateLimitConfig{Limit: 0.1, Burst: 1, MaxWait: 1}, h.handle)
			began := time.Now()
			require.NoError(t, call(guarded, fresh()))
			require.NoError(t, call(guarded, msg))
			assert.Equal(t, 10*time.Second, time.Since(began), name)

			_, cancel := cancellable(msg)
			cancel()
			err := call(guarded, msg)
			require.ErrorIs(t, err, context.Canceled, name)
			require.NotErrorIs(t, err, retry.ErrPostponed, name)
		}
	})
}

func TestRateLimitOfEachHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := protect.NewRateLimit(protect.RateLimitConfig{Limit: 1, Burst: 1})
		require.NoError(t, err)
		first, second := l.Middleware((&handler{}).handle), l.Middleware((&handler{}).handle)
		began := time.Now()
		require.NoError(t, call(first, fresh()))
		require.NoError(t, call(second, fresh()))
		assert.Zero(t, time.Since(began))
	})
}

func TestRateLimitConfig(t *testing.T) {
	_, err := protect.NewRateLimit(protect.RateLimitConfig{})
	assert.Equal(t, []string{"RateLimitConfig.Limit", "RateLimitConfig.Burst"}, fields(t, err))
	_, err = protect.NewRateLimit(protect.RateLimitConfig{Limit: -1, Burst: -1, MaxWait: -1})
	assert.Equal(t, []string{"RateLimitConfig.Limit", "RateLimitConfig.Burst", "RateLimitConfig.MaxWait"},
		fields(t, err))
	_, err = protect.NewRateLimit(protect.RateLimitConfig{Limit: rate.Limit(math.NaN()), Burst: 1})
	assert.ErrorContains(t, err, "RateLimitConfig.Limit: out of bounds: must be more than 0 calls in a second, got NaN")
}
