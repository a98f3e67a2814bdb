package publish

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// The return path of shared retry queues is declared again and again as long as a copy waits,
// whatever was published since, and not any longer.
func TestReturnPaths_LastsAsLongAsCopiesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(nil)
		policy := config.Policy{Delays: []time.Duration{10 * time.Minute, time.Second}, Strategy: config.StrategyShared}
		f := newTestForwarder(t, b)
		queue := testQueue{f.ForQueue(scriptedPlan(t, policy))}
		forward := func(delay string) { queue.forward(t, waiting(delay)) }
		forward("1s")
		forward("10m") // for longer
		forward("1s")

		bound := func(during time.Duration) int {
			before := b.Binds("q")
			pass(during)

			return b.Binds("q") - before
		}
		assert.Equal(t, 10, bound(10*returnPathInterval+time.Second))
		rest := int((10*time.Minute - 10*returnPathInterval) / returnPathInterval)
		assert.InDelta(t, rest, bound(10*time.Minute-10*returnPathInterval), 2)
		bound(returnPathInterval)
		assert.Zero(t, bound(10*time.Minute), "nothing waits any more")
		f.returnPaths.mu.Lock()
		assert.Nil(t, f.returnPaths.timer)
		f.returnPaths.mu.Unlock()

		queue.forward(t, death())
		assert.Zero(t, bound(time.Minute), "a dead letter does not wait")

		forward("1s")
		assert.NotZero(t, bound(time.Minute), "the next one that waits")
	})
}

// A return path that the broker does not answer for keeps no other from being declared, and costs
// one channel.
func TestReturnPaths_NoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(nil)
		silent, answer := context.WithCancel(t.Context())
		b.OnBind = func(queue string) {
			if queue == "q-1" {
				<-silent.Done()
			}
		}
		f := newTestForwarder(t, b)
		for i := range 3 {
			plan := planOf(t, fmt.Sprintf("q-%d", i), config.Policy{Delays: []time.Duration{time.Hour},
				Strategy: config.StrategyShared})
			testQueue{f.ForQueue(plan)}.forward(t, waiting("1h"))
		}
		pass(10*returnPathInterval + time.Second)
		assert.Equal(t, 1, b.Binds("q-1"))
		assert.Equal(t, 9, b.Binds("q-0"), "the first round took longer")
		assert.Equal(t, 9, b.Binds("q-2"))
		assert.Equal(t, 1, b.Open(), "the one without an answer: those of the copies are idle")

		answer()
		synctest.Wait()
		assert.Zero(t, b.Open())
		pass(returnPathInterval)
		assert.Equal(t, 2, b.Binds("q-1"))
	})
}

// What leads back from a ladder is declared again, too: the landing queue often, the ladder itself,
// which is large, less often, and once for all queues.
func TestReturnPaths_Backend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(nil)
		f := newTestForwarder(t, b)
		policy := config.Policy{Strategy: config.StrategyLadder}
		for _, queue := range []string{"q-0", "q-1"} {
			testQueue{f.ForQueue(planOf(t, queue, policy))}.forward(t, waiting("10m"))
		}
		level := topology.Ladder{}.WaitQueue(2, 3)

		pass(4*ladderInterval + time.Second)
		for _, landing := range []string{"q-0.landing", "q-1.landing"} {
			assert.InDelta(t, 4*int(ladderInterval/returnPathInterval), b.Binds(landing), 1)
		}
		assert.InDelta(t, 4, b.Binds(level), 1)
		pass(7 * ladderInterval)
		before := b.Binds(level)
		pass(10 * ladderInterval)
		assert.Equal(t, before, b.Binds(level), "nothing waits any more")
	})
}

// A path is declared again within the interval after its first copy, whenever the timer began for
// others.
func TestReturnPaths_BeginAtAnyTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(nil)
		f := newTestForwarder(t, b)
		policy := config.Policy{Delays: []time.Duration{20 * time.Second}, Strategy: config.StrategyShared}
		forward := func(queue string) {
			testQueue{f.ForQueue(planOf(t, queue, policy))}.forward(t, waiting("20s"))
		}
		forward("q-0")
		pass(time.Second)
		forward("q-1")
		pass(returnPathInterval)
		assert.Equal(t, 1, b.Binds("q-1"), "before the copy is due")
	})
}
