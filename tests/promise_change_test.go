package tests

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// soak is how long two versions run side by side under load: `make soak` sets minutes.
func soak(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("SOAK")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "SOAK")

	return d
}

// P7: two versions of a service with different policies share a queue under load, then only the new
// one goes on. Every message is counted: none is lost, none is there twice, none is left behind,
// and what waits under the old policy goes on under the new.
func TestP7_TwoVersionsSideBySide(t *testing.T) {
	t.Parallel()

	old := config.Policy{Delays: ms(100, 1200), MaxAge: time.Hour}
	type row struct {
		queueType string
		old, now  config.Policy
	}
	each(t, map[string]row{
		"other delays": {"quorum", old, config.Policy{Delays: ms(150, 100, 700, 300)}},
		"other ages and jitter": {"classic", old, config.Policy{Delays: ms(100, 500), Jitter: 0.5, Immediate: 1,
			MaxAge: 2 * time.Hour, NeverRetry: []config.ErrorMatch{config.Is(errNever)}}},
		"other type of queues": {"quorum", old,
			config.Policy{Delays: old.Delays, ClassicQueues: true}},
		"shared instead of own": {"classic", old, config.Policy{Delays: old.Delays, Strategy: config.StrategyShared}},
		"own instead of shared": {"quorum", config.Policy{Delays: old.Delays, Strategy: config.StrategyShared,
			ClassicQueues: true}, old},
		"fewer retries than ago": {"quorum", config.Policy{Delays: ms(100, 200), Retries: 8}, old},
		"exact instead of tiers": {"quorum", old, config.Policy{Delays: ms(100, 1200), Jitter: 0.3,
			Strategy: config.StrategyLadder, Ladder: ownLadder()}},
		"tiers instead of exact": {"classic", config.Policy{Delays: ms(100, 1200), Strategy: config.StrategyLadder,
			Ladder: ownLadder()}, old},
		"another ladder": {"quorum", config.Policy{Delays: ms(100, 1200), Strategy: config.StrategyLadder,
			Ladder: ownLadder()}, config.Policy{Delays: ms(100, 1200), Strategy: config.StrategyLadder,
			Ladder: config.Ladder{Prefix: uniqueName("ladder"), Unit: 50 * time.Millisecond, Radix: 4, Levels: 4}}},
	}, func(t *testing.T, _ string, test row) {
		prefix := uniqueName("shared")
		options := shared(t, prefix, false, append(test.old.DistinctDelays(), test.now.DistinctDelays()...)...)
		version := func(policy config.Policy, s *seen) setup {
			c := setup{QueueType: test.queueType, Prefetch: 30, Options: amqpretry.Options{
				Policies: config.Policies{Default: policy}, Concurrency: 4, Names: options.Names,
				CloseTimeout: 15 * time.Second, // no handler is interrupted, which would run again
			}}
			c.Handler = s.handler(byFate)

			return c
		}
		var s seen
		first := start(t, version(test.old, &s))
		c := version(test.now, &s)
		c.Queue = first.Queue
		second := start(t, c)

		// Load, at a pace that a busy machine keeps up with.
		var ids []string
		lasting := soak(t)
		for began, pace := time.Now(), time.NewTicker(100*time.Millisecond); time.Since(began) < lasting; <-pace.C {
			n := len(ids)
			for i := range 5 {
				ids = append(ids, []string{"ok", "once", "never", "twice", "panic"}[i]+"-"+fmt.Sprint(n+i))
			}
			first.publish(ids[n:]...)
		}
		first.close() // while some of its messages wait
		waiting := second.Broker.Depth(first.retryQueue(1200 * time.Millisecond))

		letters := doomed(ids)
		dead := func() int { return first.deadLettered() + second.deadLettered() }
		done := func() int {
			succeeded := map[string]bool{}
			for _, c := range s.All() {
				if succeeds(c.ID, c.Attempt.Number) {
					succeeded[c.ID] = true
				}
			}

			return len(succeeded)
		}
		await.Until(t, func() bool {
			return dead() >= len(letters) && done() >= len(ids)-len(letters)
		}, "every message ends")
		second.close()

		found := second.Broker.Drain(second.dlq())
		assert.Len(t, found, len(letters), "dead letters")
		assert.Equal(t, letters, reasons(found))
		assert.Empty(t, second.Broker.Drain(second.Queue), "nothing is left in the main queue")
		for _, svc := range []*service{first, second} {
			plan := must(svc.Retrier.Plan(svc.Queue))(t)
			queues := plan.Queues
			if plan.Ladder != nil && !rabbit.IsShared(plan.Ladder) {
				queues = append(queues, plan.Ladder.Shared().Queues...)
			}
			for _, q := range queues {
				assert.Empty(t, second.Broker.Drain(q.Name), q.Name)
			}
		}
		s.requireAttemptsInOrder(t, ids)
		t.Logf("%d messages in %s, %d calls, %d waited when the old version ended", len(ids), lasting, s.count(),
			waiting)
		assert.NotZero(t, second.Calls.count())
		assert.NotZero(t, first.Calls.count())
	})
}

// requireAttemptsInOrder holds the calls of each message, by whichever version, against its fate:
// attempts 1, 2, 3 … with the tries of each, without a gap or a repetition, until it succeeds.
func (s *seen) requireAttemptsInOrder(t *testing.T, ids []string) {
	t.Helper()
	calls := map[string][]sight{}
	for _, c := range s.All() {
		calls[c.ID] = append(calls[c.ID], c)
	}
	wrong := 0
	for _, id := range ids {
		all := calls[id]
		slices.SortFunc(all, func(a, b sight) int { return cmp.Compare(a.At.UnixNano(), b.At.UnixNano()) })
		var told []string
		good := len(all) > 0
		for i, c := range all {
			told = append(told, fmt.Sprintf("%d.%d", c.Attempt.Number, c.Attempt.Try))
			switch {
			case c.Attempt.Calls != i:
				good = false
			case i == 0:
				good = good && c.Attempt.Number == 1 && c.Attempt.Try == 1
			case c.Attempt.Try > 1:
				good = good && c.Attempt.Number == all[i-1].Attempt.Number && c.Attempt.Try == all[i-1].Attempt.Try+1
			default:
				// A version with fewer retries takes what is beyond them for its last.
				good = good && c.Attempt.Number == min(all[i-1].Attempt.Number, c.Attempt.MaxRetries)+1
			}
			good = good && (i == len(all)-1 || !succeeds(id, c.Attempt.Number))
		}
		if !good {
			wrong++
			t.Errorf("%s: attempts %v", id, told)
		}
		if wrong == 10 {
			t.Fatal("and so on")
		}
	}
}
