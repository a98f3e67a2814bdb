package tests

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// commonLadder is what most tests of exact delays use, as services of one virtual host do: units of
// 100 ms, up to 99.9 s. A ladder for each test would be more than a thousand quorum queues.
var commonLadder = ownLadder()

// exact are retries with exact delays.
func exact(delays ...time.Duration) config.Policies {
	return config.Policies{
		Default: config.Policy{Delays: delays, Strategy: config.StrategyLadder, Ladder: commonLadder},
	}
}

// ownLadder is for a test that deletes a ladder, floods it, or looks into the queues that all
// share.
func ownLadder() config.Ladder {
	return config.Ladder{Prefix: uniqueName("ladder"), Unit: 100 * time.Millisecond, Radix: 10, Levels: 3}
}

// A retry waits what the policy or the handler asks for, to the unit, in no queue of its own.
func TestExactDelays(t *testing.T) {
	t.Parallel()
	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		var s seen
		c := setup{Prefetch: 20, Handler: s.handler(func(msg *message.Message) error {
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
		dead := svc.Broker.Take(svc.dlq(), 1)
		assert.Len(t, dead, 1)
		await.Until(t, func() bool {
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

// Whoever publishes to the ladder reaches only targets that take part: what is for others ends in
// the unroutable queue, and holds nobody up.
func TestExact_NobodyElse(t *testing.T) {
	t.Parallel()
	var s seen
	c := setup{QueueType: "quorum", Handler: s.handler(failing(1))}
	c.Options.Policies = exact(ms(300)...)
	c.Options.Policies.Default.Ladder = ownLadder()
	svc := start(t, c)
	ladder := must(topology.NewLadder(c.Options.Policies.Default.Ladder))(t)

	stranger := uniqueName("stranger")
	svc.Broker.Declare(stranger, mainQueueArguments("quorum"))
	const forged = 100 // more than a queue has under way at a time
	exchange, key := ladder.Address(topology.Target{Key: stranger}, 200*time.Millisecond, &amqp091.Publishing{})
	svc.Broker.PublishTo(exchange, key, slices.Repeat([]amqp091.Publishing{{Body: []byte("forged")}}, forged)...)
	// A key that says nothing, on the same way.
	svc.Broker.PublishTo(exchange, "0.0.2.nobody."+svc.Queue, amqp091.Publishing{})

	svc.publish("1")
	await.Until(t, func() bool { return s.count() == 2 }, "others wait for their delay only")
	assert.Less(t, gaps(s.of("1"))[0], time.Minute, "a queue that gets no confirmation tries again after 3 minutes")
	svc.Broker.Has(ladder.Unroutable(), forged+1)
	assert.Zero(t, svc.Broker.Depth(stranger))
	left := svc.Broker.Drain(ladder.Unroutable())
	assert.Equal(t, key, left[0].RoutingKey, "the key is there, for whoever looks")
}

// P6: a priority that would hold up others on RabbitMQ 4.0 is lower while a message waits, and is
// the message's own again for its handler, its next copy and its dead letter. Messages without a
// priority are as punctual as the others: with their priorities, those of 4.0 were up to 2.7 s late
// here.
func TestExact_Priority(t *testing.T) {
	t.Parallel()
	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		var s seen
		c := setup{QueueType: "classic", Prefetch: 200, Handler: s.handler(failing(99))}
		c.Options.Policies = exact(ms(800)...)
		svc := run(t, c)
		const messages, batch = 300, 5
		for first := 0; first < messages; first += batch { // steadily, so that the queues always have both kinds
			for i := first; i < first+batch; i++ {
				m := rabbit.Message(strconv.Itoa(i), "")
				m.Priority = uint8(i % 2 * 9)
				svc.Broker.Publish(svc.Queue, m)
			}
			<-time.After(50 * time.Millisecond)
		}

		dead := svc.Broker.Take(svc.dlq(), messages)
		for _, d := range dead {
			n := must(strconv.Atoi(rabbit.UUID(d)))(t)
			assert.EqualValues(t, n%2*9, d.Priority)
			assert.NotContains(t, d.Headers, header.Priority)
		}
		var longest [2]time.Duration
		for i := range messages {
			g := gaps(s.of(strconv.Itoa(i)))
			require.Len(t, g, 1, i)
			assert.GreaterOrEqual(t, g[0], 800*time.Millisecond)
			longest[i%2] = max(longest[i%2], g[0])
		}
		assert.Less(t, longest[0], 2*longest[1]+500*time.Millisecond)
	})
}

// P1: somebody deletes all that the ladder has, with a message in it; what fails later declares it
// again.
func TestExact_LadderDeleted(t *testing.T) {
	t.Parallel()
	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		var s seen
		c := setup{QueueType: "quorum", Handler: s.handler(failing(1))}
		c.Options.Policies = exact(ms(300)...)
		c.Options.Policies.Default.Ladder = ownLadder()
		svc := run(t, c)
		svc.publish("before")
		await.Until(t, func() bool { return s.count() == 2 }, "a ladder is there")

		plan := must(svc.Retrier.Plan(svc.Queue))(t)
		shared := plan.Ladder.Shared()
		for _, q := range shared.Queues {
			svc.Broker.Remove("", q.Name)
		}
		svc.publish("without queues")
		await.Until(t, func() bool { return len(s.of("without queues")) == 2 }, "declared again")

		for _, x := range shared.Exchanges {
			svc.Broker.Remove(x.Name)
		}
		svc.publish("without exchanges")
		await.Until(t, func() bool { return len(s.of("without exchanges")) == 2 }, "declared again")
		assert.NotEmpty(t, svc.Events(retry.EventTopologyRepaired))

		svc.Broker.Remove("", svc.Queue+".landing")
		svc.publish("without a landing queue")
		svc.Broker.Has(topology.Ladder{Config: c.Options.Policies.Default.Ladder}.Unroutable(), 1)
		await.Until(t, func() bool { return svc.Broker.Depth(svc.Queue+".landing") == 0 },
			"it is declared again while something waits")
	})
}

// P1: somebody deletes the exchange to which all targets are bound, while a message waits. It comes
// back with the binding of the message's queue, so the message is not taken for unroutable.
func TestExact_DeliveryDeleted(t *testing.T) {
	t.Parallel()
	var s seen
	c := setup{QueueType: "quorum", Handler: s.handler(failing(1))}
	c.Options.Policies = exact(30 * time.Second) // the return path is declared again after 15 s, which can take seconds
	c.Options.Policies.Default.Ladder = ownLadder()
	svc := start(t, c)
	svc.publish("1")
	await.Until(t, func() bool { return len(svc.Events(retry.EventRetried)) == 1 }, "it waits")
	ladder := topology.Ladder{Config: c.Options.Policies.Default.Ladder}
	svc.Broker.Remove(ladder.Delivery())
	await.Until(t, func() bool { return s.count() == 2 }, "it comes back")
	assert.Zero(t, svc.Broker.Depth(ladder.Unroutable()))
}

// Two queues share a ladder. One of them is full; the retries of the other are on time. With a
// broker of its own, TestExactDelays_BlockedQueue_OwnBroker counts those of the full queue as well.
func TestExact_FullQueueHoldsUpNobody(t *testing.T) {
	t.Parallel()
	uri := brokertest.URI(t)
	policies := exact(ms(300)...)
	var s seen
	c := setup{URI: uri, QueueType: "quorum", Prefetch: 200, Handler: s.handler(failing(1))}
	c.Options.Policies = policies
	healthy := start(t, c)

	full := uniqueName("full")
	plan := must(topology.New(full, policies.Default, topology.Names{}))(t)
	healthy.Broker.Declare(full, amqp091.Table{"x-queue-type": "quorum", "x-max-length": int64(5),
		"x-overflow": "reject-publish"})
	require.NoError(t, plan.Declare(healthy.Broker.Channel()))
	t.Cleanup(func() {
		healthy.Broker.Remove("", full+".landing", full+".dlq")
		healthy.Broker.Remove(full + ".retry")
	})
	const waiting = 200
	exchange, key := plan.Route(1, 200*time.Millisecond, &amqp091.Publishing{})
	healthy.Broker.PublishTo(exchange, key, rabbit.Messages(numbers(waiting)...)...)
	await.Until(t, func() bool { return healthy.Broker.Depth(full) >= 5 }, "it is full, and the others wait before it")

	ids := numbers(100)
	healthy.publish(ids...)
	await.Until(t, func() bool { return s.count() == 2*len(ids) }, "the other queue has its retries")
	for _, id := range ids {
		assert.Less(t, gaps(s.of(id))[0], time.Minute, "nobody waits for the full queue, tried after 3 minutes")
	}
}

func numbers(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}

	return ids
}

// Where nothing may be declared, a landing queue that is missing is an error at once: messages
// would be unroutable.
func TestExact_NotProvisioned(t *testing.T) {
	t.Parallel()
	uri := brokertest.URI(t)
	broker := newRabbit(t, uri)
	queue, policies := uniqueName("promise"), exact(ms(200)...)
	broker.Declare(queue, mainQueueArguments("quorum"))
	options := amqpretry.Options{Policies: policies, AssumeTopology: true, Logger: newLogs(t)}
	conf := plainConfig(uri, "quorum")

	retrier := newRetrier(t, conf, options)
	subscriber := must(retrier.NewSubscriber())(t)
	_, err := subscriber.Subscribe(t.Context(), queue)
	require.ErrorContains(t, err, `its landing queue is not provisioned`)
	missing := errorAs[*topology.DeclareError](t, err)
	assert.Equal(t, queue+".landing", missing.Name)
	stock := must(amqp.NewSubscriber(retrier.Config(), watermill.NopLogger{}))(t)
	t.Cleanup(func() { assert.NoError(t, stock.Close()) })
	_, err = stock.Subscribe(t.Context(), queue)
	require.ErrorContains(t, err, `its landing queue is not provisioned`)

	plan := must(retrier.Plan(queue))(t)
	require.NoError(t, plan.Declare(broker.Channel()))
	t.Cleanup(func() { broker.RemovePlan(plan) })
	_, err = subscriber.Subscribe(t.Context(), queue)
	require.NoError(t, err)
}
