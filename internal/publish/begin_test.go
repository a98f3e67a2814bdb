package publish

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

var retryTwice = config.Policy{Delays: []time.Duration{time.Second, time.Minute}}

// What has come together is published in its order, in few writes.
func TestBegin_TogetherInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const copies = 50
		b := newTestBroker(nil)
		queue := b.forward(t, retryOnce)
		queue.forward(t, failure()) // opens the channel

		before := b.writes.Load()
		var done []string
		name := func(i int) string { return fmt.Sprintf("message-%02d", i) }
		for i := range copies {
			o := failure()
			o.Delivery.MessageId = name(i)
			queue.Begin(t.Context(), *o, isThere, func(state *wire.State, err error) {
				assert.NoError(t, err)
				assert.Equal(t, 1, state.Count)
				done = append(done, name(i))
			})
		}
		synctest.Wait()
		require.Len(t, done, copies)
		for i, u := range b.Publishes()[1:] {
			assert.True(t, u.Carries(name(i)), "published as the %d.", i)
			assert.Equal(t, name(i), done[i], "done as the %d.", i)
		}
		assert.LessOrEqual(t, b.writes.Load()-before, int64(2), "writes for %d copies", copies)
	})
}

// A copy that the broker does not confirm holds up those behind it for a moment, and its slot for
// as long as that lasts.
func TestBegin_OneIsNotConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(nil)
		queue := b.forward(t, retryTwice)
		queue.forward(t, failure())
		b.OnPublish = func(u *fakebroker.Publish) {
			if !u.Carries("1m") {
				u.Ack()
			}
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		var stuck []error
		queue.Begin(ctx, *waiting("1m"), isThere, func(_ *wire.State, err error) { stuck = append(stuck, err) })
		began := time.Now()
		for range 20 {
			queue.Begin(ctx, *failure(), isThere, func(_ *wire.State, err error) {
				assert.NoError(t, err)
				assert.LessOrEqual(t, time.Since(began), patience)
			})
		}
		pass(patience)
		synctest.Wait()
		began = time.Now()
		for range 20 {
			queue.Begin(ctx, *failure(), isThere, func(_ *wire.State, err error) {
				assert.NoError(t, err)
				assert.Zero(t, time.Since(began), "nobody waits for it a second time")
			})
		}
		synctest.Wait()
		assert.Len(t, queue.held.copies, 1)
		assert.Empty(t, stuck)

		cancel(ErrGone)
		synctest.Wait()
		assert.Equal(t, []error{ErrGone}, stuck)
		assert.Empty(t, queue.held.copies)
	})
}

// What is returned, refused, or lost with its channel is published again, and done once.
func TestBegin_AgainUntilConfirmed(t *testing.T) {
	for name, fail := range map[string]func(*fakebroker.Publish){
		"returned": (*fakebroker.Publish).Return, "refused": (*fakebroker.Publish).Nack,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTestBroker(nil)
				queue := b.forward(t, retryOnce)
				queue.forward(t, failure())
				failures := 0
				b.OnPublish = func(u *fakebroker.Publish) {
					if failures < 3 {
						failures++
						fail(u)
						return
					}
					u.Ack()
				}
				done := 0
				queue.Begin(t.Context(), *failure(), isThere, func(state *wire.State, err error) {
					assert.NoError(t, err)
					assert.Equal(t, "1s", state.Delay)
					done++
				})
				pass(time.Minute)
				synctest.Wait()
				assert.Equal(t, 1, done)
				assert.Len(t, b.Publishes(), 1+3+1)
			})
		})
	}
}

// What the broker delivers again is not published, also where others are that were put in line with
// it.
func TestBegin_Gone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(nil)
		queue := b.forward(t, retryOnce)
		queue.forward(t, failure())
		var errs []error
		for _, isGone := range []bool{true, false, true} {
			queue.Begin(t.Context(), *failure(), func() bool { return isGone }, func(_ *wire.State, err error) {
				errs = append(errs, err)
			})
			synctest.Wait()
		}
		assert.Equal(t, []error{ErrGone, nil, ErrGone}, errs)
		assert.Len(t, b.Publishes(), 1+1)
	})
}

// Foreign code that ends the goroutine costs no other copy its end, nor those that come later.
func TestBegin_DoneEndsTheGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(nil)
		queue := b.forward(t, retryOnce)
		queue.forward(t, failure())
		var done atomic.Int64
		for range 2 {
			for i := range 10 {
				queue.Begin(t.Context(), *failure(), isThere, func(*wire.State, error) {
					if done.Add(1); i == 3 {
						runtime.Goexit()
					}
				})
			}
			synctest.Wait()
		}
		assert.EqualValues(t, 20, done.Load())
		assert.Empty(t, queue.held.copies)
	})
}

// The goroutines of a queue end when nothing comes, and with the forwarder.
func TestBegin_NobodyStays(t *testing.T) {
	for name, end := range map[string]func(*Forwarder){
		"idle":  func(*Forwarder) { pass(lineIdle) },
		"close": func(f *Forwarder) { f.Close(time.Now().Add(time.Second)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTestBroker(nil)
				f := newTestForwarder(t, b)
				queue := testQueue{f.ForQueue(scriptedPlan(t, retryOnce))}
				queue.forward(t, failure())
				queue.begin(t.Context())
				synctest.Wait()
				assert.True(t, isRunning(queue.line) && isRunning(queue.sent))
				end(f)
				synctest.Wait()
				assert.False(t, isRunning(queue.line) || isRunning(queue.sent))
			})
		})
	}
}

func isRunning(l *line[*copying]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.runs
}
