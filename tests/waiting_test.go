package tests

import (
	"fmt"
	"slices"
	"testing"
	"time"

	wmdelay "github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/retry"
)

// waits are the messages that wait for a service.
func (s *service) waits(policies config.Policies) *dlq.Waits {
	s.t.Helper()
	client := must(dlq.Open(s.t.Context(), dlq.Config{URI: s.Broker.URI, NoDeliveryLimitPolicy: true}))(s.t)
	s.t.Cleanup(func() { _ = client.Close() })

	return must(client.Waits(topology.Target{Key: s.Queue}, policies.For(s.Queue)))(s.t)
}

func (s *service) doWith(waits *dlq.Waits, plan dlq.Plan) dlq.Report {
	s.t.Helper()

	return must(waits.Run(s.t.Context(), plan))(s.t)
}

// A retry that is sent at once is the next attempt, and is not taken for one that came too early.
func TestWaitingRetriesSentAtOnce(t *testing.T) {
	t.Parallel()
	each(t, map[string]config.Policy{
		"queues": {Strategy: config.StrategyQueues}, "shared": {Strategy: config.StrategyShared},
		"classic": {Strategy: config.StrategyQueues, ClassicQueues: true},
		"ladder":  {Strategy: config.StrategyLadder, Ladder: commonLadder},
		"cycle":   {Strategy: config.StrategyCycle},
	}, func(t *testing.T, name string, policy config.Policy) {
		const n = 20
		policy.Delays = []time.Duration{time.Minute, time.Minute}
		var s seen
		c := setup{QueueType: "quorum", Prefetch: 20, Handler: s.handler(func(msg *message.Message) error {
			if attempt, _ := retry.AttemptFromContext(msg.Context()); msg.UUID == "0" && attempt.Number == 1 {
				return retry.RetryAfter(90*time.Second, errNever) // in retry queues it waits twice
			}
			return errNever
		})}
		c.Options.Policies = config.Policies{Default: policy}
		svc := start(t, c)
		waits := svc.waits(c.Options.Policies)
		var ids []string
		for i := range n {
			ids = append(ids, fmt.Sprint(i))
		}
		svc.publish(ids...)
		for failures := 1; failures <= 2; failures++ {
			await.Until(t, func() bool {
				found, matched, err := waits.Soonest(t.Context(), dlq.Filter{}, 0)
				return err == nil && matched == n && found[0].Wait.DueBy != dlq.DueAtMost &&
					!slices.ContainsFunc(found, func(l dlq.DeadLetter) bool {
						return name != "cycle" && l.Calls != failures
					})
			}, "all of them wait")
			for l, err := range waits.Browse(t.Context(), dlq.Filter{}) {
				require.NoError(t, err)
				if name != "cycle" {
					assert.Equal(t, dlq.DueTold, l.Wait.DueBy)
					assert.WithinRange(t, l.Wait.Due, l.LastFailure.Add(time.Minute), l.LastFailure.Add(91*time.Second))
				}
			}
			report := svc.doWith(waits, dlq.Plan{Kind: dlq.SendNow})
			if name == "cycle" {
				assert.Equal(t, []dlq.Left{{Why: dlq.LeftByBroker, Messages: n - 1}}, report.Left)
				assert.Equal(t, 1, report.Done, "the one that a copy brings back")
				assert.GreaterOrEqual(t, svc.doWith(waits, dlq.Plan{Kind: dlq.Cancel}).Done, n-1)
				return
			}
			assert.Equal(t, n, report.Done)
		}
		for _, dead := range svc.Broker.Take(svc.dlq(), n) {
			assert.Equal(t, "3", dead.Headers["amqpretry-attempts"])
		}
		for _, id := range ids {
			var numbers []int
			for _, c := range s.of(id) {
				numbers = append(numbers, c.Attempt.Number)
			}
			assert.Equal(t, []int{1, 2, 3}, numbers)
		}
	})
}

// A retry that is postponed is the next attempt at that time, also where it has to wait several
// times.
func TestWaitingRetriesPostponed(t *testing.T) {
	t.Parallel()
	each(t, map[string]config.Policy{
		"queues": {Strategy: config.StrategyQueues}, "ladder": {Strategy: config.StrategyLadder, Ladder: commonLadder},
	}, func(t *testing.T, _ string, policy config.Policy) {
		policy.Delays = ms(2000)
		var s seen
		c := setup{QueueType: "quorum", Handler: s.handler(failing(1))}
		c.Options.Policies = config.Policies{Default: policy}
		svc := start(t, c)
		waits := svc.waits(c.Options.Policies)
		svc.publish("1", "2")
		await.Until(t, func() bool { return len(s.of("1")) == 1 && len(s.of("2")) == 1 })
		until := time.Now().Add(5 * time.Second)
		postpone := dlq.Plan{Kind: dlq.Postpone, Until: until, Filter: dlq.Filter{UUIDs: []string{"1"}}}
		await.Until(t, func() bool { return svc.doWith(waits, postpone).Done == 1 })
		await.Until(t, func() bool { return len(s.of("1")) == 2 })
		calls := s.of("1")
		assert.WithinRange(t, calls[1].At, until, until.Add(3*time.Second))
		assert.Equal(t, 2, calls[1].Attempt.Number)
		require.Len(t, s.of("2"), 2)
		assert.Less(t, gaps(s.of("2"))[0], 4*time.Second)
	})
}

// A delayed publish tells when it is due, and can be cancelled and sent at once.
func TestWaitingDelayedPublish(t *testing.T) {
	t.Parallel()
	d, topic, got := newDelayed(t, brokertest.URI(t), withOwnLadder)
	due := time.Now().Add(time.Minute)
	require.NoError(t, d.Publisher.Publish(topic, delayed("now", wmdelay.For(time.Minute)),
		delayed("never", wmdelay.For(time.Minute))))

	client := must(dlq.Open(t.Context(), dlq.Config{URI: brokertest.URI(t), NoDeliveryLimitPolicy: true}))(t)
	t.Cleanup(func() { _ = client.Close() })
	ladder := must(topology.NewLadder(d.Options.Ladder))(t)
	waits := must(client.Waits(topology.Target{Key: topic}, config.Policy{}, ladder))(t)
	found, matched, err := waits.Soonest(t.Context(), dlq.Filter{}, 0)
	require.NoError(t, err)
	assert.Equal(t, 2, matched)
	for _, l := range found {
		assert.Equal(t, dlq.DueTold, l.Wait.DueBy)
		assert.WithinDuration(t, due, l.Wait.Due, time.Second)
	}
	cancel := dlq.Plan{Kind: dlq.Cancel, Filter: dlq.Filter{UUIDs: []string{"never"}}}
	assert.Equal(t, 1, must(waits.Run(t.Context(), cancel))(t).Done)
	assert.Equal(t, 1, must(waits.Run(t.Context(), dlq.Plan{Kind: dlq.SendNow}))(t).Done)
	assert.Contains(t, got.wait(t, 1), "now")
}
