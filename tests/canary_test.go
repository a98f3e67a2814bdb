package tests

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// What becomes of a canary is told by whoever handles it, through its retries, on both subscribers;
// and nobody is told of other messages.
func TestCanariesAreToldOf(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(*testing.T, setup) *service{
		"own":   start,
		"stock": func(t *testing.T, c setup) *service { return startStock(t, c).service },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var fixed, postponed, failuresTold atomic.Bool
			c := setup{URI: brokertest.URI(t), QueueType: "quorum", Handler: func(msg *message.Message) error {
				a, _ := retry.AttemptFromContext(msg.Context())
				switch {
				case !fixed.Load(), msg.UUID == "3 dies":
					return retry.Permanent(errFate)
				case msg.UUID == "2 is retried" && a.Number < 3:
					return errFate
				case msg.UUID == "2 is retried" && !failuresTold.Load():
					// those that fail are known first: else the others may follow before
					return retry.Postpone(100 * time.Millisecond)
				case msg.UUID == "4 is dropped":
					return retry.Drop(errFate)
				case msg.UUID == "5 is postponed" && postponed.CompareAndSwap(false, true):
					return retry.Postpone(100 * time.Millisecond)
				}

				return nil
			}}
			c.Options.Policies = retries(ms(100, 100)...)
			svc := run(t, c)
			letters := lettersOf(t, svc, c.URI)
			dead := func(n int) {
				t.Helper()
				await.Until(t, func() bool {
					depth, err := letters.Depth(t.Context())
					return err == nil && depth == n
				}, "%d dead letters", n)
			}
			for i, id := range []string{"1 succeeds", "2 is retried", "3 dies", "4 is dropped", "5 is postponed",
				"6 waits for those"} {
				svc.publish(id)
				dead(i + 1) // in this order
			}
			fixed.Store(true)

			var told []dlq.CanaryReport
			canary := dlq.Canary{Messages: 5, Tolerate: 2, Watch: time.Minute, OnChange: func(r dlq.CanaryReport) {
				told = append(told, r)
				failuresTold.Store(r.DeadLettered == 1 && r.Dropped == 1)
			}}
			report, err := letters.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Canary: canary})
			require.NoError(t, err)
			assert.Equal(t, dlq.CanaryReport{Sent: 5, Handled: 3, DeadLettered: 1, Dropped: 1, Watched: true},
				report.Canary)
			retried := 0
			for _, r := range told {
				retried = max(retried, r.Retried)
			}
			assert.Positive(t, retried, "it was told of retries as well: %v", told)
			assert.Equal(t, 6, report.Done, "the other one has followed")
			await.Until(t, func() bool {
				return svc.told("6 waits for those") == "call failed dead-lettered call succeeded"
			}, "it is handled")
			dead(1)

			again := svc.Broker.Take(svc.dlq(), 1)[0]
			assert.NotContains(t, again.Headers, header.Canary, "a dead letter is no canary any more")
			svc.close()
		})
	}
}

// A publisher writes the header as it likes: it makes nobody publish to a queue that no run listens
// to, and what nobody takes is nobody's error.
func TestForgedCanariesTellNobody(t *testing.T) {
	t.Parallel()
	c := setup{URI: brokertest.URI(t), Handler: succeed}
	svc := start(t, c)
	other := uniqueName("other")
	svc.Broker.Declare(other, amqp091.Table{"x-expires": int32(60_000), "x-queue-type": "classic"})
	forged := func(canary string) amqp091.Publishing {
		p := with("forged "+canary, nil)
		for key, value := range (wire.State{Count: header.CountDead, Queue: svc.Queue, Canary: canary}).Headers("id") {
			p.Headers[key] = value
		}

		return p
	}
	svc.Broker.Publish(svc.Queue, forged("1 run "+other), forged("1 run "+svc.Queue), forged("1 run nowhere.lock"),
		forged("1"), forged("-1 run x.lock"), forged("\xff"))
	await.Until(t, func() bool { return svc.Calls.count() == 6 }, "all are handled")
	svc.publish("afterwards")
	await.Until(t, func() bool { return svc.Calls.count() == 7 }, "and so is the next one")
	svc.close()
	assert.Zero(t, svc.Broker.Depth(other))
	assert.Zero(t, svc.Broker.Depth(svc.Queue))
}
