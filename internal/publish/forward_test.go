package publish

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

var retryOnce = config.Policy{Delays: []time.Duration{time.Second}}

// death is a failure that ends in the dead-letter queue.
func death() *codec.CopyRequest {
	o := failure()
	o.State = wire.State{Queue: "q", Count: header.CountDead, Reason: retry.ReasonPermanent}

	return o
}

// A broker that does not answer a declaration stops only the copies that need it, and those not for
// ever: they are published again after a while. However long that lasts, there is one declaration,
// on one channel, which is closed after a late answer.
func TestRedeclare_NoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent, answers := context.WithCancel(t.Context())
		b := newTestBroker(nil)
		returned := 0
		b.OnPublish = func(u *fakebroker.Publish) {
			if returned < 20 && u.Carries(header.Delay) {
				returned++
				u.Return()
				return
			}
			u.Ack()
		}
		b.OnDeclare = func(string) { <-silent.Done() }
		queue := b.forward(t, retryOnce)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		context.AfterFunc(ctx, answers)

		var forwards sync.WaitGroup
		for range 5 {
			forwards.Go(func() {
				_, err := queue.Forward(ctx, failure(), isThere)
				assert.NoError(t, err)
			})
		}
		synctest.Wait()
		assert.Equal(t, 1, b.Declares("q.retry.1s"))

		soon, over := context.WithTimeout(ctx, time.Second)
		defer over()
		_, err := queue.Forward(soon, death(), isThere)
		assert.NoError(t, err, "a copy that needs nothing declared")

		forwards.Wait()
		assert.Len(t, b.Publishes(), 20+5+1)
		assert.Equal(t, 1, b.Declares("q.retry.1s"), "one at a time")
		assert.Equal(t, 2, b.Open(), "the channel of the copies, and that of the declaration")
		held := b.Events(retry.EventHeld)
		require.NotEmpty(t, held)
		require.ErrorIs(t, held[len(held)-1].Err, ErrReturned)
		require.ErrorContains(t, held[len(held)-1].Err, "not answered")

		answers()
		synctest.Wait()
		assert.Equal(t, 1, b.Open(), "after the late answer")
		assert.Len(t, b.Events(retry.EventTopologyRepaired), 1)
	})
}

// What was declared again is not declared again for copies that were sent before.
func TestRedeclare_OnceForAllThatWereSentBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(nil)
		b.OnPublish = silent // answered below
		queue := b.forward(t, retryOnce)
		for range 3 {
			queue.begin(t.Context())
		}
		synctest.Wait()
		sent := b.Publishes()
		require.Len(t, sent, 3)

		for _, u := range sent {
			pass(time.Millisecond)
			u.Return()
			pass(time.Second) // the one before has declared, and is published again
		}
		assert.Len(t, b.Publishes(), 6)
		assert.Equal(t, 1, b.Declares("q.retry.1s"))

		pass(time.Millisecond)
		b.Publishes()[5].Return()
		pass(time.Second)
		assert.Equal(t, 2, b.Declares("q.retry.1s"), "deleted again")
	})
}

// A copy that the broker refuses is published again with growing pauses, however long that lasts.
func TestForward_BacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 40
		b := newTestBroker(nil)
		b.OnPublish = func(u *fakebroker.Publish) {
			if len(b.Publishes()) > most { // without pauses there would be no end
				u.Ack()
				return
			}
			u.Nack()
		}
		queue := b.forward(t, retryOnce)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := queue.Forward(ctx, failure(), isThere)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		publishes := b.Publishes()
		assert.Greater(t, len(publishes), 10)
		assert.Less(t, len(publishes), most)
		for i, u := range publishes[1:] {
			pause := u.At.Sub(publishes[i].At)
			assert.GreaterOrEqual(t, pause, 35*time.Millisecond)
			assert.LessOrEqual(t, pause, 6500*time.Millisecond)
		}
		last := len(publishes) - 1
		assert.Greater(t, publishes[last].At.Sub(publishes[last-1].At), time.Second)
	})
}

// On the stock path no context tells that the delivery's channel is gone. Its copy is not published
// then, as the broker delivers the message again.
func TestForward_GoneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(nil)
		queue := b.forward(t, retryOnce)
		_, err := queue.Forward(t.Context(), failure(), func() bool { return true })
		require.ErrorIs(t, err, ErrGone)
		assert.Empty(t, b.Publishes())
	})
}

// The same while the broker does not answer.
func TestForward_GoneMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(silent)
		queue := b.forward(t, retryOnce)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		gone := time.Now().Add(time.Minute)
		_, err := queue.Forward(ctx, failure(), func() bool { return time.Now().After(gone) })
		require.ErrorIs(t, err, ErrGone)
		assert.Less(t, time.Since(gone), time.Minute)
		assert.Len(t, b.Publishes(), 1)
	})
}

// The delivery's channel may close while one for its copy opens: no copy is published then, as the
// broker delivers the message again.
func TestForward_GoneWhileAChannelOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(nil)
		queue := b.forward(t, retryOnce)
		hasChannel := func() bool {
			queue.sender.mu.Lock()
			defer queue.sender.mu.Unlock()

			return len(queue.sender.channels) > 0
		}
		_, err := queue.Forward(t.Context(), failure(), hasChannel)
		require.ErrorIs(t, err, ErrGone)
		assert.Empty(t, b.Publishes())
	})
}

// However many deliveries of a queue are held, that is reported once in HoldWarning.
func TestHeld_ReportedOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const held, warnings = 50, 10
		b := newTestBroker(silent)
		f := newTestForwarder(t, b)
		queue := testQueue{f.ForQueue(scriptedPlan(t, retryOnce))}
		ctx, cancel := context.WithCancelCause(t.Context())
		for range held {
			queue.begin(ctx)
			pass(100 * time.Millisecond)
		}
		pass(warnings * f.settings.HoldWarning)

		events := b.Events(retry.EventHeld)
		assert.GreaterOrEqual(t, len(events), warnings)
		assert.LessOrEqual(t, len(events), warnings+2)
		assert.Equal(t, held, events[len(events)-1].Held)

		cancel(errors.New("over"))
		synctest.Wait()
		assert.Len(t, b.Events(retry.EventReleased), 1)
	})
}

// A queue that always has a copy on its way is well again once none of them is held for long.
func TestHeld_IsOverWhileOthersAreOnTheirWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestForwarder(t, newTestBroker(silent))
		queue := testQueue{f.ForQueue(scriptedPlan(t, retryOnce))}
		first, end := context.WithCancelCause(t.Context())
		queue.begin(first)
		pass(2 * f.settings.HoldWarning)
		assert.Len(t, f.Problems(), 1)

		second, endSecond := context.WithCancelCause(t.Context())
		queue.begin(second)
		end(errors.New("over"))
		pass(f.settings.HoldWarning / 2)
		assert.Empty(t, f.Problems())
		pass(f.settings.HoldWarning)
		assert.Len(t, f.Problems(), 1)
		endSecond(errors.New("over"))
		synctest.Wait()
		assert.Empty(t, f.Problems())
	})
}

// A forwarder of a queue has a channel open for a minute or two after its last copy, and opens
// another one for the next.
func TestQueueForwarder_ClosesIdleChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(nil)
		queue := b.forward(t, config.Policy{Delays: []time.Duration{time.Second}, Strategy: config.StrategyShared})
		for range 3 {
			queue.forward(t, failure())
			queue.forward(t, death())
			assert.Equal(t, 2, b.Open(), "one for each exchange")
			opened := b.Confirms()
			for range 6 {
				pass(idleAfter / 2)
				queue.forward(t, failure())
			}
			assert.Equal(t, 1, b.Open(), "the one for dead letters was idle")
			assert.Equal(t, opened, b.Confirms(), "the other was not")
			pass(2*idleAfter + time.Second)
			assert.Zero(t, b.Open())
		}
	})
}

// A level of the ladder to which the user may not write closes its own channel only.
func TestForward_OneLevelIsForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(nil)
		ladder := topology.Ladder{}
		b.OnPublish = func(u *fakebroker.Publish) {
			if u.Exchange == ladder.Level(3) {
				u.Refuse(403, "ACCESS_REFUSED - write access to exchange '"+u.Exchange+"' in vhost '/' refused")
			} else {
				time.AfterFunc(time.Minute, u.Ack)
			}
		}
		queue := b.forward(t, config.Policy{Strategy: config.StrategyLadder})
		forbidden, allowed := failure(), failure()
		forbidden.State.Delay, allowed.State.Delay = "10m", "1s"
		ctx, cancel := context.WithCancelCause(t.Context())
		var forwards sync.WaitGroup
		forwards.Go(func() {
			_, err := queue.Forward(ctx, forbidden, isThere)
			assert.ErrorContains(t, err, "over")
		})
		queue.forward(t, allowed)
		cancel(errors.New("over"))
		forwards.Wait()
		published := map[string]int{}
		for _, u := range b.Publishes() {
			published[u.Exchange]++
		}
		assert.Equal(t, 1, published[ladder.Level(1)])
		assert.Greater(t, published[ladder.Level(3)], 5, "tried again and again meanwhile")
	})
}

// However long the broker does not answer a publish, its channel stays: others would come to it.
func TestQueueForwarder_KeepsChannelsThatAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(silent)
		queue := b.forward(t, retryOnce)
		ctx, cancel := context.WithCancelCause(t.Context())
		for range 5 {
			queue.begin(ctx)
			pass(3 * idleAfter)
			assert.Equal(t, 1, b.Open())
		}
		for _, u := range b.Publishes() {
			u.Ack()
		}
		pass(2*idleAfter + time.Second)
		assert.Zero(t, b.Open())
		cancel(errors.New("over"))
	})
}

// One that is given up closes its channels at once when nothing is in flight, and else after the
// last copy. It takes copies all the same.
func TestQueueForwarder_Retire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(nil)
		queue := b.forward(t, retryOnce)
		queue.forward(t, failure())
		b.OnPublish = silent
		for range 3 {
			queue.begin(t.Context())
		}
		synctest.Wait()
		queue.Retire()
		synctest.Wait()
		waiting := b.Publishes()[1:]
		require.Len(t, waiting, 3)
		for _, u := range waiting {
			assert.Equal(t, 1, b.Open(), "its copies are in flight")
			u.Ack()
			synctest.Wait()
		}
		assert.Zero(t, b.Open())

		b.OnPublish = nil
		queue.forward(t, failure())
		synctest.Wait()
		assert.Zero(t, b.Open(), "after a late one")

		idle := b.forward(t, retryOnce)
		idle.forward(t, failure())
		assert.Equal(t, 1, b.Open())
		idle.Retire()
		synctest.Wait()
		assert.Zero(t, b.Open())
	})
}

// A copy whose context has ended keeps no channel open.
func TestQueueForwarder_RetireAfterAnEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(silent)
		queue := b.forward(t, retryOnce)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := queue.Forward(ctx, failure(), isThere)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 1, b.Open())
		queue.Retire()
		synctest.Wait()
		assert.Zero(t, b.Open())
	})
}
