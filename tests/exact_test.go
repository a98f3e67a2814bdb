package tests

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/retry"
)

// exact are retries with exact delays, on a ladder of the test's own: units of 100 ms, up to 99.9 s.
func exact(delays ...time.Duration) config.Policies {
	return config.Policies{Default: config.Policy{Delays: delays, DelayMode: config.DelayExact, Ladder: testLadder()}}
}

// testLadder is small, and nobody else's.
func testLadder() config.Ladder { return config.Ladder{Prefix: uniqueName("ladder"), Levels: 3} }

// A retry waits what the policy or the handler asks for, to the unit, in no queue of its own.
func TestExactDelays(t *testing.T) {
	t.Parallel()
	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		var s seen
		c := setup{URI: brokertest.URI(t), Prefetch: 20, Handler: s.handler(func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			switch {
			case msg.UUID == "policy" || attempt.Calls > 0 && msg.UUID != "dead":
				return failing(2)(msg)
			case msg.UUID == "after":
				return retry.RetryAfter(1730*time.Millisecond, errNever)
			case msg.UUID == "postpone":
				return retry.Postpone(1250 * time.Millisecond)
			default:
				return errNever
			}
		})}
		c.Options.Policies = exact(ms(300, 500)...)
		svc := run(t, c)
		svc.publish("policy", "after", "postpone", "dead")
		dead := svc.Broker.Take(svc.dlq(), 1, 15*time.Second)
		assert.Len(t, dead, 1)
		eventually(t, 15*time.Second, func() bool {
			return len(s.of("policy")) == 3 && len(s.of("after")) == 3 && len(s.of("postpone")) == 4
		}, "all come back")
		for id, waits := range map[string][]int{
			"policy": {300, 500}, "after": {1800, 500}, "postpone": {1300, 300, 500}, "dead": {300, 500},
		} {
			got := gaps(s.of(id))
			require.Len(t, got, len(waits), id)
			for i, wait := range ms(waits...) {
				assert.GreaterOrEqual(t, got[i], wait, "%s: never early", id)
			}
		}
	})
}
