package tests

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/retry"
)

// A burst of failures comes back spread evenly over the part of the delay that is random. Retry queues hand it back
// near the end of the delay, which shows that this test can fail.
func TestExactDelays_JitterSpreadsABurst(t *testing.T) {
	t.Parallel()
	const (
		messages = 600
		buckets  = 8               // of a second each, from the end of the second to that of the tenth
		late     = 5 * time.Second // on a busy machine; those of a retry queue come up to 8 s later
	)
	policy := config.Policy{Delays: []time.Duration{10 * time.Second}, Jitter: 0.8}

	t.Run("exact", func(t *testing.T) {
		t.Parallel()
		policy := policy
		policy.DelayMode, policy.Ladder = config.DelayExact, ownLadder()
		all := failTogether(t, policy, messages)

		var due [buckets]int
		for _, one := range all {
			assert.GreaterOrEqual(t, one.back, one.due-rounding, "early")
			second := int((one.due+time.Second-1)/time.Second) - 3
			due[max(second, 0)]++
		}
		// The number in a bucket has a binomial distribution with the mean n/8 and the variance n/8*7/8. Six times its
		// standard deviation is exceeded once in hundreds of millions of runs.
		mean := float64(messages) / buckets
		deviation := math.Sqrt(mean * (buckets - 1) / buckets)
		for i, n := range due {
			assert.InDelta(t, mean, n, 6*deviation, "due in second %d: %v", i+3, due)
		}
		// And they come when they are due, but for some on a busy machine.
		for end := 3 * time.Second; end <= 10*time.Second; end += time.Second {
			due, back := float64(all.dueBy(end)), float64(all.backBy(end+late))
			assert.GreaterOrEqual(t, back, 0.95*due, "due by %s, and back %s later", end, late)
		}
	})
	t.Run("tiers", func(t *testing.T) {
		t.Parallel()
		tiers := policy
		tiers.DelayMode = config.DelayTiers
		all := failTogether(t, tiers, messages)
		assert.Less(t, all.backBy(6*time.Second), messages/4, "back after half of the time")
		assert.Greater(t, all.dueBy(6*time.Second), messages/4, "due after half of the time")
		due, back := float64(all.dueBy(3*time.Second)), float64(all.backBy(3*time.Second+late))
		assert.Less(t, back, 0.95*due, "due by 3s, and back %s later", late)
	})
}

// waited says when a message was due, and when it was back, after it failed.
type waited struct{ due, back time.Duration }

type burst []waited

func (b burst) backBy(end time.Duration) int {
	n := 0
	for _, one := range b {
		if one.back <= end {
			n++
		}
	}

	return n
}

func (b burst) dueBy(end time.Duration) int {
	n := 0
	for _, one := range b {
		if one.due <= end {
			n++
		}
	}

	return n
}

// failTogether fails messages that lie in a queue, once each.
func failTogether(t *testing.T, policy config.Policy, messages int) burst {
	t.Helper()
	c := setup{URI: brokertest.URI(t), QueueType: "quorum", Prefetch: 100, Handler: failing(1)}
	c.Options.Policies.Default = policy
	svc := start(t, c)
	ids := make([]string, messages)
	for i := range ids {
		ids[i] = fmt.Sprintf("once-%d", i)
	}
	svc.publish(ids...)
	await.Until(t, func() bool { return svc.Calls.count() >= 2*messages }, "all are back")

	back := map[string]time.Time{}
	for _, c := range svc.Calls.All() {
		if c.Attempt == 2 {
			back[c.ID] = c.At
		}
	}
	var all burst
	for _, e := range svc.Events(retry.EventFailed) {
		due := e.Verdict.Delay
		if e.Verdict.Wait > 0 {
			due = e.Verdict.Wait
		}
		all = append(all, waited{due, back[e.Message.UUID].Sub(e.At)})
	}
	require.Len(t, all, messages)

	return all
}
