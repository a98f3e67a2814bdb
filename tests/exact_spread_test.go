package tests

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/retry"
)

// A burst of failures comes back spread evenly over the part of the delay that is random. Retry
// queues hand it back near the end of the delay, which shows that this test can fail. Both are
// measured at the same time, as a busy machine makes both late.
func TestExactDelays_JitterSpreadsABurst(t *testing.T) {
	t.Parallel()
	const (
		messages = 600
		buckets  = 8 // from the first second to the fifth
		width    = 500 * time.Millisecond
	)
	policy := config.Policy{Delays: []time.Duration{5 * time.Second}, Jitter: 0.8}
	var exact, tiers burst
	t.Run("bursts", func(t *testing.T) {
		t.Run("exact", func(t *testing.T) {
			t.Parallel()
			policy := policy
			policy.Strategy, policy.Ladder = config.StrategyLadder, ownLadder()
			exact = failTogether(t, policy, messages)

			var due [buckets]int
			for _, one := range exact {
				assert.GreaterOrEqual(t, one.back, one.due-rounding, "early")
				bucket := int((one.due+width-1)/width) - 3
				due[max(bucket, 0)]++
			}
			// The number in a bucket has a binomial distribution with the mean n/8 and the variance
			// n/8*7/8. Six times its standard deviation is exceeded once in hundreds of millions of
			// runs.
			mean := float64(messages) / buckets
			deviation := math.Sqrt(mean * (buckets - 1) / buckets)
			for i, n := range due {
				assert.InDelta(t, mean, n, 6*deviation, "due in bucket %d: %v", i, due)
			}
		})
		t.Run("tiers", func(t *testing.T) {
			t.Parallel()
			policy := policy
			policy.Strategy = config.StrategyQueues
			tiers = failTogether(t, policy, messages)
			assert.Less(t, tiers.backBy(3*time.Second), messages/4, "back after half of the time")
			assert.Greater(t, tiers.dueBy(3*time.Second), messages/4, "due after half of the time")
		})
	})
	require.False(t, t.Failed())

	// Exact retries come when they are due, but for some on a busy machine: they are less late than
	// those of a retry queue, which come up to 4 s later.
	t.Logf("late by, of half and of 95 of 100: exact %s and %s, tiers %s and %s", exact.late(50), exact.late(95),
		tiers.late(50), tiers.late(95))
	assert.Less(t, 3*exact.late(50), 2*tiers.late(50), "half of them")
	assert.Less(t, 3*exact.late(95), 2*tiers.late(95), "95 of 100")
}

// late is by how much so many of a hundred come later than they are due, at most.
func (b burst) late(percent int) time.Duration {
	all := make([]time.Duration, len(b))
	for i, one := range b {
		all[i] = one.back - one.due
	}
	slices.Sort(all)

	return all[(len(all)-1)*percent/100]
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
	c := setup{QueueType: "quorum", Prefetch: 100, Handler: failing(1)}
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
