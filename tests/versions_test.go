package tests

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// Every kind of object is declared with the same arguments on each version of the broker, again and
// again, also after a restart, over which what waits and what is dead stays. Run on brokers of
// several versions, it tells that no argument depends on one.
func TestDeclaredAgainAfterARestart_OwnBroker(t *testing.T) {
	t.Parallel()

	broker := brokertest.Start(t, brokertest.ConfirmTimeout(t, 5*time.Second))
	wait := ms(10_000)
	// What comes out of a classic retry queue while its main queue is not available is lost, and
	// while a broker starts, a quorum queue is not: what was due while the broker was down is lost.
	lossy := func(p config.Policy, queueType string) bool {
		return p.ClassicQueues && queueType == "quorum"
	}
	kinds := []struct {
		queue, queueType string
		policy           config.Policy
	}{
		{"own", "quorum", config.Policy{Delays: wait}},
		{"own.on.classic", "classic", config.Policy{Delays: wait}},
		{"classic.on.classic", "classic", config.Policy{Delays: wait, ClassicQueues: true}},
		{"shared", "quorum", config.Policy{Delays: wait, Strategy: config.StrategyShared}},
		{"shared.on.classic", "classic", config.Policy{Delays: wait, Strategy: config.StrategyShared}},
		{"protected", "quorum", config.Policy{Delays: wait, Protect: config.ProtectionArguments}},
		{"dead.letters", "quorum", config.Policy{Mode: config.ModeDeadLetter}},
		{"classic", "quorum", config.Policy{Delays: wait, ClassicQueues: true}},
		{"shared.classic", "quorum", config.Policy{Delays: wait, Strategy: config.StrategyShared,
			ClassicQueues: true}},
	}
	services := func(handler func(*message.Message) error) (all []*service) {
		for _, k := range kinds {
			all = append(all, start(t, setup{
				URI: broker.URI, Queue: k.queue, QueueType: k.queueType, KeepObjects: true, Handler: handler,
				Options: amqpretry.Options{Policies: config.Policies{Default: k.policy}},
			}))
		}

		return all
	}
	declareAgain := func() {
		for _, k := range kinds {
			conf := plainConfig(broker.URI, k.queueType)
			retrier := newRetrier(t, conf, amqpretry.Options{Policies: config.Policies{Default: k.policy}})
			own := must(retrier.NewSubscriber())(t)
			require.NoError(t, own.SubscribeInitialize(k.queue))
			stock := must(amqp.NewSubscriber(retrier.Config(), newLogs(t)))(t)
			require.NoError(t, stock.SubscribeInitialize(k.queue))
			require.NoError(t, stock.Close())
			depths, err := retrier.QueueDepths(t.Context()) // passive declarations
			require.NoError(t, err)
			assert.NotEmpty(t, depths)
			require.NoError(t, retrier.Close())
		}
	}

	for _, svc := range services(func(msg *message.Message) error {
		if msg.UUID == "dead" {
			return retry.Permanent(errFate)
		}

		return errFate
	}) {
		svc.publish("dead", "1")
		await.Until(t, func() bool {
			return len(svc.Events(retry.EventRetried, retry.EventDeadLettered)) == 2
		}, "%s: one waits, one is dead", svc.Queue)
		svc.close()
	}
	declareAgain()
	broker.Stop()
	broker.Start()
	declareAgain()
	for i, svc := range services(succeed) {
		dead := map[string]string{"dead": string(retry.ReasonPermanent)}
		switch {
		case kinds[i].policy.Mode == config.ModeDeadLetter:
			dead["1"] = string(retry.ReasonExhausted)
		case lossy(kinds[i].policy, kinds[i].queueType):
			t.Logf("%s: of 1 that was due while the broker was down, %d came back", svc.Queue, svc.Calls.count())
		default:
			// What is due before its main queue has a leader again comes with the broker's next
			// try, which is after 3 minutes.
			await.Within(t, 4*time.Minute, func() bool {
				return svc.Calls.count() > 0
			}, "%s: what waits comes back", svc.Queue)
			assert.Equal(t, []int{2}, svc.Calls.attempts("1"), svc.Queue)
		}
		assert.Equal(t, dead, reasons(svc.Broker.Take(svc.dlq(), len(dead))), svc.Queue)
	}
}
