package protect_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
	"github.com/amqpretry/watermill-retry/retry"
)

// rateOf is how many calls a second instances make together that are always busy. Each has 8 at a
// time.
func rateOf(t *testing.T, configs ...protect.RateLimitConfig) float64 {
	t.Helper()
	const seconds = 20
	var calls atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, c := range configs {
		guarded := limited(t, c, func(*message.Message) ([]*message.Message, error) {
			if ctx.Err() == nil {
				calls.Add(1)
			}

			return nil, nil
		})
		for range 8 {
			wg.Go(func() {
				for ctx.Err() == nil {
					if err := call(guarded, fresh()); err != nil {
						wait(100 * time.Millisecond)
					}
				}
			})
		}
	}
	wait(seconds * time.Second)
	cancel()
	wg.Wait()

	return float64(calls.Load()) / seconds
}

// A limit that is shared holds for all instances together. One that is not holds for each.
func TestSharedRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		own := protect.RateLimitConfig{Limit: 20, Burst: 1}
		for _, maxWait := range []time.Duration{0, 10 * time.Millisecond} {
			shared := own
			shared.Shared, shared.MaxWait, shared.Name = s, maxWait, maxWait.String()
			for n := 1; n <= 4; n++ {
				configs := make([]protect.RateLimitConfig, n)
				for i := range configs {
					configs[i] = shared
				}
				got := rateOf(t, configs...)
				assert.LessOrEqual(t, got, 20.1, "%d instances, MaxWait %s", n, maxWait)
				if maxWait == 0 {
					assert.GreaterOrEqual(t, got, 19.9, "%d instances", n)
				}
			}
		}
		assert.InDelta(t, 40, rateOf(t, own, own), 0.2, "not shared")
		other := own
		other.Shared, other.Name = s, "other"
		shared := own
		shared.Shared, shared.Name = s, "one"
		assert.InDelta(t, 40, rateOf(t, shared, other), 0.2, "another service")
	})
}

// Shared turns come when those of golang.org/x/time/rate do.
func TestSharedTurnsAreThoseOfRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(bubble{t}, func(r *rapid.T) {
			c := protect.RateLimitConfig{
				Limit: rate.Limit(rapid.Float64Range(0.01, 1000).Draw(r, "limit")),
				Burst: rapid.IntRange(1, 5).Draw(r, "burst"), MaxWait: 1000 * time.Hour,
			}
			limiter := rate.NewLimiter(c.Limit, c.Burst)
			c.Shared = newServer(r)
			var called time.Time
			h := func(*message.Message) ([]*message.Message, error) { called = time.Now(); return nil, nil }
			instances := []message.HandlerFunc{limited(t, c, h), limited(t, c, h)}
			for i := range 20 {
				turn := time.Now().Add(limiter.Reserve().Delay())
				require.NoError(r, call(instances[i%2], newMessage(newDelivery(noRetries), "")))
				require.WithinDuration(r, turn, called, time.Microsecond)
				longest := int64(2 * float64(time.Second) / float64(c.Limit))
				wait(time.Duration(rapid.Int64Range(0, longest).Draw(r, "pause")))
			}
		})
	})
}

// Messages of all instances that are postponed come back one after the other.
func TestSharedRateLimitSpreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := protect.RateLimitConfig{Limit: 1, Burst: 1, MaxWait: time.Millisecond, Shared: newServer(t)}
		instances := []message.HandlerFunc{limited(t, c, (&handler{}).handle), limited(t, c, (&handler{}).handle)}
		require.NoError(t, call(instances[0], fresh()))
		for i := range 10 {
			err := call(instances[i%2], fresh())
			require.ErrorIs(t, err, protect.ErrRateLimited)
			assert.Equal(t, time.Duration(i+1)*time.Second, postponedFor(t, err))
		}
	})
}

// A turn that is not taken is another's.
func TestSharedTurnIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := protect.RateLimitConfig{Limit: 1, Burst: 1, MaxWait: time.Minute, Shared: newServer(t)}
		guarded := limited(t, c, (&handler{}).handle)
		require.NoError(t, call(guarded, fresh()))
		msg, cancel := cancellable(fresh())
		ended := make(chan error)
		go func() { ended <- call(guarded, msg) }()
		synctest.Wait()
		cancel()
		err := <-ended
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, time.Second, postponedFor(t, err))
		began := time.Now()
		require.NoError(t, call(limited(t, c, (&handler{}).handle), fresh()))
		assert.Equal(t, time.Second, time.Since(began))
	})
}

// No limit, and limits without end.
func TestSharedRateLimitBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newServer(t), &handler{}
		for _, limit := range []rate.Limit{rate.Inf, math.MaxFloat64, 1e-300, 1e-9} {
			guarded := limited(t, protect.RateLimitConfig{Limit: limit, Burst: math.MaxInt, Shared: s,
				Name: fmt.Sprint(limit)}, h.handle)
			for range 3 {
				require.NoError(t, call(guarded, fresh()))
			}
		}
		guarded := limited(t, protect.RateLimitConfig{Limit: 1e-300, Burst: 1, Shared: s, Name: "slow"}, h.handle)
		require.NoError(t, call(guarded, fresh()))
		assert.Equal(t, time.Hour, postponedFor(t, call(guarded, fresh())))
		// What somebody else has written there is no limit.
		overwrite(t, s, "limit/slow/", "\xff")
		require.NoError(t, call(guarded, fresh()))
	})
}

// While the store does not answer, each instance is on its own, and says so. No message waits for
// it but now and then.
func TestSharedRateLimitFallsBack(t *testing.T) {
	for name, hangs := range map[string]bool{"error": false, "silence": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, o, logger := newServer(t), &told{}, &counting{}
				c := protect.RateLimitConfig{Limit: 20, Burst: 1, Shared: s, OnError: o.onError, Logger: logger}
				s.set(errDown, hangs)
				assert.InDelta(t, 40, rateOf(t, c, c), 8)
				ops := o.ops(t)
				assert.GreaterOrEqual(t, len(ops), 6)
				assert.LessOrEqual(t, len(ops), 2*8*5)
				assert.LessOrEqual(t, logger.count(), 6)
				s.set(nil, false)
				wait(10 * time.Second)
				assert.InDelta(t, 20, rateOf(t, c, c), 0.2, "it is back")
			})
		})
	}
}

// bubble is a test in a bubble, which has no deadline.
type bubble struct{ testing.TB }

// overwrite is what somebody else does with a value.
func overwrite(t *testing.T, s *server, name, value string) {
	t.Helper()
	found := false
	require.NoError(t, s.Memory.Update(t.Context(), name, time.Hour, func(_ time.Time, old []byte) ([]byte, error) {
		found = old != nil

		return []byte(value), nil
	}))
	assert.True(t, found)
}

func TestSharedIsNilPointer(t *testing.T) {
	var none *store.Memory
	_, err := protect.NewRateLimit(protect.RateLimitConfig{Limit: 1, Burst: 1, Shared: none})
	assert.Equal(t, []string{"RateLimitConfig.Shared"}, fields(t, err))
	_, err = protect.NewCircuitBreaker(protect.CircuitBreakerConfig{Shared: none})
	assert.Equal(t, []string{"CircuitBreakerConfig.Shared"}, fields(t, err))
}

// counting is a logger that counts errors.
type counting struct {
	watermill.NopLogger
	n atomic.Int32
}

func (c *counting) Error(string, error, watermill.LogFields) { c.n.Add(1) }
func (c *counting) count() int                               { return int(c.n.Load()) }

// Three instances with a shared breaker do together what one does with gobreaker.
func TestSharedBreakerIsGobreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(bubble{t}, func(r *rapid.T) {
			type change struct {
				name     string
				from, to gobreaker.State
			}
			settings := func(changes *[]change) gobreaker.Settings {
				return gobreaker.Settings{
					OnStateChange: func(name string, from, to gobreaker.State) {
						*changes = append(*changes, change{name, from, to})
					},
				}
			}
			maxRequests := uint32(rapid.IntRange(0, 3).Draw(r, "max requests"))
			interval := time.Duration(rapid.IntRange(0, 5).Draw(r, "interval")) * time.Second
			timeout := time.Duration(rapid.IntRange(0, 5).Draw(r, "timeout")) * time.Second
			trip := rapid.SampledFrom([]func(gobreaker.Counts) bool{
				nil, func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 2 },
				func(c gobreaker.Counts) bool { return c.Requests >= 3 && 2*c.TotalFailures > c.Requests },
				func(c gobreaker.Counts) bool { return c.TotalSuccesses >= 2 && c.ConsecutiveSuccesses == 0 },
			}).Draw(r, "trip")
			var ownChanges, sharedChanges []change
			s := newServer(r)
			build := func(changes *[]change, inside bool) protect.CircuitBreakerConfig {
				c := protect.CircuitBreakerConfig{Settings: settings(changes)}
				c.Settings.MaxRequests, c.Settings.Interval, c.Settings.Timeout = maxRequests, interval, timeout
				c.Settings.ReadyToTrip = trip
				if inside {
					c.Shared = s
				}

				return c
			}
			outcome := &handler{}
			own := breakerOf(r, build(&ownChanges, false), outcome.handle)
			var instances []message.HandlerFunc
			for range 3 {
				instances = append(instances, breakerOf(r, build(&sharedChanges, true), outcome.handle))
			}
			for range 40 {
				wait(time.Duration(rapid.IntRange(0, 3000).Draw(r, "pause")) * time.Millisecond)
				outcome.err = nil
				if rapid.Bool().Draw(r, "fails") {
					outcome.err = errBoom
				}
				want := call(own, fresh())
				got := call(instances[rapid.IntRange(0, 2).Draw(r, "instance")], fresh())
				require.Equal(r, fmt.Sprint(want), fmt.Sprint(got))
				require.Equal(r, ownChanges, sharedChanges)
			}
		})
	})
}

func breakerOf(t require.TestingT, c protect.CircuitBreakerConfig, h message.HandlerFunc) message.HandlerFunc {
	breaker, err := protect.NewCircuitBreaker(c)
	require.NoError(t, err)

	return breaker.Middleware(h)
}

func sharedAfterOne(s *server) protect.CircuitBreakerConfig {
	return protect.CircuitBreakerConfig{Shared: s, Settings: gobreaker.Settings{
		Timeout: time.Minute, ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 1 },
	}}
}

// The call of a process that died does not keep the breaker half-open, and one that is slow is
// counted when it ends.
func TestSharedBreakerHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newServer(t), &handler{err: errBoom}
		another := func(h message.HandlerFunc) message.HandlerFunc { return breakerOf(t, sharedAfterOne(s), h) }
		guarded := another(h.handle)
		require.ErrorIs(t, call(guarded, fresh()), errBoom)
		err := call(another(h.handle), fresh())
		require.ErrorIs(t, err, gobreaker.ErrOpenState, "in all instances")
		assert.Equal(t, time.Minute, postponedFor(t, err))
		wait(time.Minute + 1)

		end := slow(another, fresh())
		require.ErrorIs(t, call(guarded, fresh()), gobreaker.ErrTooManyRequests)
		wait(time.Minute + 1)
		inside := another(func(*message.Message) ([]*message.Message, error) {
			require.ErrorIs(t, call(guarded, fresh()), gobreaker.ErrTooManyRequests, "one instead of it, no more")
			require.NoError(t, end(nil))
			h.err = nil
			require.NoError(t, call(guarded, fresh()), "the slow one has closed it")

			return nil, nil
		})
		require.NoError(t, call(inside, fresh()))
		assert.Equal(t, 2, h.calls)
	})
}

// The result of a call that began before the breaker opened says nothing of what is behind it now.
func TestSharedBreakerLateResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, late := range []error{nil, errBoom} {
			s, h := newServer(t), &handler{err: errBoom}
			another := func(h message.HandlerFunc) message.HandlerFunc { return breakerOf(t, sharedAfterOne(s), h) }
			guarded := another(h.handle)
			end := slow(another, fresh())
			require.ErrorIs(t, call(guarded, fresh()), errBoom)
			wait(time.Minute + 1)
			half := another(func(*message.Message) ([]*message.Message, error) {
				require.Equal(t, late, end(late))
				require.ErrorIs(t, call(guarded, fresh()), gobreaker.ErrTooManyRequests, "still half-open")

				return nil, nil
			})
			require.NoError(t, call(half, fresh()))
			h.err = nil
			require.NoError(t, call(guarded, fresh()))
		}
	})
}

// A panic and a Goexit are failures, and a withdrawn message is none.
func TestSharedBreakerOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, h := range map[string]message.HandlerFunc{
			"a panic": panics("boom"),
			"a Goexit": func(*message.Message) ([]*message.Message, error) {
				runtime.Goexit()

				return nil, nil
			},
			"permanent": func(*message.Message) ([]*message.Message, error) { return nil, retry.Permanent(errBoom) },
		} {
			c := sharedAfterOne(newServer(t))
			guarded := breakerOf(t, c, h)
			endsGoroutine(func() {
				defer func() { _ = recover() }()
				_ = call(guarded, fresh())
			})
			err := call(breakerOf(t, c, (&handler{}).handle), fresh())
			if name == "permanent" {
				require.NoError(t, err, name)
			} else {
				require.ErrorIs(t, err, gobreaker.ErrOpenState, name)
			}
		}
	})
}

// While the store does not answer, each instance has a breaker of its own, and says so.
func TestSharedBreakerFallsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, o, h := newServer(t), &told{}, &handler{}
		c := sharedAfterOne(s)
		c.OnError = o.onError
		one, other := breakerOf(t, c, h.handle), breakerOf(t, c, h.handle)
		s.set(errDown, false)
		require.NoError(t, call(one, fresh()))
		assert.Equal(t, []string{"update"}, o.ops(t))
		h.err = errBoom
		require.ErrorIs(t, call(one, fresh()), errBoom)
		require.ErrorIs(t, call(one, fresh()), gobreaker.ErrOpenState)
		require.ErrorIs(t, call(other, fresh()), errBoom)
		s.set(nil, false)
		wait(10 * time.Second)
		h.err = nil
		require.NoError(t, call(one, fresh()), "the one of all instances is closed")
		assert.Len(t, o.errs, 2)

		// What somebody else has written there is a new breaker.
		overwrite(t, s, "breaker//", `{"state":7}`)
		require.NoError(t, call(one, fresh()))
	})
}
