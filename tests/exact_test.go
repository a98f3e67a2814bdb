package tests

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
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
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// commonLadder is what most tests of exact delays use, as services of one virtual host do: units of
// 100 ms, up to 99.9 s. A ladder for each test would be more than a thousand quorum queues.
var commonLadder = ownLadder()

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

// P6: a priority that would hold up others on RabbitMQ 4.0 is lower while a message waits, and its
// own again afterwards. Messages without one are as punctual as the others.
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
		await.Until(t, func() bool { return svc.Broker.Depth(svc.Queue+".landing") == 0 }, "declared again")
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

// What docs/how-to/operate-exact-delays.md says of unroutable messages: they go on by hand, as
// retries through the landing queue, and as fresh messages straight to the main queue.
func TestExactDelays_UnroutableByHand(t *testing.T) {
	t.Parallel()
	c := setup{Queue: uniqueName("promise")}
	c.Options.Policies = exact(ms(300)...)
	c.Options.Policies.Default.Ladder = ownLadder()
	c.Handler = func(*message.Message) error { return errNever }
	first := start(t, c)
	plan := must(first.Retrier.Plan(c.Queue))(t)
	landing, unroutable := c.Queue+".landing", plan.Ladder.Name()+".unroutable"
	first.Broker.Do(func(ch *amqp091.Channel) error {
		_, err := ch.QueueDelete(landing, false, false, false)
		return err
	})
	first.publish("landing", "direct")
	stuck := first.Broker.Take(unroutable, 2)
	require.Len(t, stuck, 2)
	first.close()
	c.Handler = succeed
	second := start(t, c) // declares the landing queue again
	for _, d := range stuck {
		assert.Regexp(t, `^0\.0\.3\.q\.`+c.Queue+`$`, d.RoutingKey, "it names the target")
		key := c.Queue
		if rabbit.UUID(d) == "landing" {
			key = landing
		}
		second.Broker.PublishTo("", key, amqp091.Publishing{
			Headers: d.Headers, DeliveryMode: d.DeliveryMode, Body: d.Body,
		})
	}
	await.Until(t, func() bool { return len(second.Calls.All()) == 2 }, "both arrive")
	assert.Equal(t, []int{2}, second.Calls.attempts("landing"), "a retry")
	assert.Equal(t, []int{1}, second.Calls.attempts("direct"), "a fresh message")
}

// A burst of failures comes back spread evenly over the random part of the delay. Retry queues hand
// it back near the end of the delay, which shows that this test can fail.
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

func (b burst) late(percent int) time.Duration {
	all := make([]time.Duration, len(b))
	for i, one := range b {
		all[i] = one.back - one.due
	}
	slices.Sort(all)

	return all[(len(all)-1)*percent/100]
}

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

// confirmTimeout is after how long the broker of the following test tries again to hand back what a
// queue did not take.
const confirmTimeout = 10 * time.Second

// blockedOwn is the number of retries of the blocked queue, and the length limit of the queue that
// is full. It is more than the 32 that the broker hands back at a time. With a lower limit the
// queue would fill up again, and the remaining retries would wait for another confirmTimeout.
const blockedOwn = 200

// A main queue that is full, or was deleted, keeps its own retries waiting and nobody else's, which
// go through the same queues of the ladder. It gets them when it can take them.
func TestExactDelays_BlockedQueue_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t, brokertest.ConfirmTimeout(t, confirmTimeout))
	table := report.Table{
		Title: "Retries of others while a main queue is blocked",
		Head: []string{"meanwhile", "p50, ms", "p99, ms", "max, ms", "retries that wait for it",
			"all of them back, s"},
	}
	b := &blocked{t: t, broker: broker, policies: exact(ms(100)...), table: &table}
	b.others = start(t, setup{
		URI: broker.URI, QueueType: "quorum", Prefetch: 100, Options: amqpretry.Options{Policies: b.policies},
		Handler: b.askOnce,
	})

	late := b.measure("nothing")
	table.Add("nothing is blocked", late[0], late[1], late[2], 0, "")

	full := func(conf *amqp.Config) {
		conf.Queue.Arguments = amqp091.Table{
			"x-queue-type": "quorum", "x-max-length": int32(blockedOwn), "x-overflow": "reject-publish",
		}
	}
	b.during("a full main queue", full, func(queue string) {
		client := newRabbit(t, broker.URI)
		client.Publish(queue, rabbit.Messages(rabbit.Numbered("fill", blockedOwn)...)...)
		await.Until(t, func() bool {
			return client.TryPublish("", queue, rabbit.Messages("fill")...) != nil
		}, "queue %s is full", queue)
	}, func(string) {})
	b.during("a deleted main queue", nil, func(queue string) {
		newRabbit(t, broker.URI).Remove("", queue)
	}, func(queue string) {
		newRabbit(t, broker.URI).Declare(queue, mainQueueArguments("quorum"))
	})
	report.Write(t, fmt.Sprintf("%s\nRabbitMQ %s, confirm timeout %s.\n", table.String(),
		newRabbit(t, broker.URI).Version(), confirmTimeout))
}

type blocked struct {
	t        *testing.T
	broker   *brokertest.Broker
	policies config.Policies
	others   *service
	table    *report.Table
}

// askedFor is the wait for a message with a number: so many that all messages go through the same
// few queues.
func askedFor(id string) time.Duration {
	_, number, _ := strings.Cut(id, "-")
	n, _ := strconv.Atoi(number)

	return time.Second + time.Duration(n%20)*100*time.Millisecond
}

func (b *blocked) askOnce(msg *message.Message) error {
	if a, _ := retry.AttemptFromContext(msg.Context()); a.Number == 1 {
		return retry.RetryAfter(askedFor(msg.UUID), errFate)
	}

	return nil
}

// measure fails messages of the others over some seconds, and gives how late they came back. A
// queue that holds them up does so each time, and a busy machine now and then, so the best of three
// counts.
func (b *blocked) measure(name string) [3]float64 {
	b.t.Helper()
	const most = float64(confirmTimeout/2) / float64(time.Millisecond)
	var late [3]float64
	for try := range 3 {
		if late = b.measureOnce(fmt.Sprint(strings.ReplaceAll(name, " ", "_"), "_", try)); late[2] < most {
			return late
		}
	}
	assert.Less(b.t, late[2], most, "they have waited for somebody else's queue")

	return late
}

func (b *blocked) measureOnce(name string) [3]float64 {
	b.t.Helper()
	const messages = 300
	before := b.others.Calls.count()
	for i := range messages {
		b.others.publish(fmt.Sprintf("%s-%d", name, i))
		<-time.After(10 * time.Millisecond)
	}
	await.Until(b.t, func() bool { return b.others.Calls.count() >= before+2*messages }, "the others are back")

	failed := map[string]time.Time{}
	var late []float64
	for _, c := range b.others.Calls.All() {
		switch {
		case !strings.HasPrefix(c.ID, name+"-"):
		case c.Attempt == 1:
			failed[c.ID] = c.At
		default:
			by := c.At.Sub(failed[c.ID]) - askedFor(c.ID)
			assert.GreaterOrEqual(b.t, by, -rounding, "early")
			late = append(late, float64(by)/float64(time.Millisecond))
		}
	}
	require.Len(b.t, late, messages)
	slices.Sort(late)

	return [3]float64{late[messages/2], late[messages*99/100], late[messages-1]}
}

// during has retries of a queue wait that is blocked meanwhile, measures those of the others, and
// then lets the queue have its own.
func (b *blocked) during(name string, configure func(*amqp.Config), block, unblock func(queue string)) {
	b.t.Helper()
	c := setup{
		URI: b.broker.URI, QueueType: "quorum", Prefetch: 100, Queue: uniqueName("blocked"),
		Options: amqpretry.Options{Policies: b.policies}, Handler: succeed,
		Configure: configure,
	}
	first := start(b.t, c)
	plan := must(first.Retrier.Plan(c.Queue))(b.t)
	first.close()
	block(c.Queue)

	all := map[string]bool{}
	client := newRabbit(b.t, b.broker.URI)
	for i := range blockedOwn { // due while the others' are measured
		id := fmt.Sprintf("own-%d", i)
		m := rabbit.Message(id, "")
		all[id] = true
		exchange, key := plan.Route(1, askedFor(id), &m)
		client.PublishTo(exchange, key, m)
	}
	late := b.measure(name)
	waiting := 0
	await.Until(b.t, func() bool { // all were due before the last of the others
		waiting = b.depth(c.Queue + ".landing")
		return waiting == blockedOwn
	}, "all retries wait in the landing queue of their own")

	unblock(c.Queue)
	began := time.Now()
	second := start(b.t, c)
	missing := func() map[string]bool {
		missing := maps.Clone(all)
		for id := range second.Calls.ids() {
			delete(missing, id)
		}

		return missing
	}
	await.Until(b.t, func() bool { return len(missing()) == 0 }, "all retries of the queue come")
	b.table.Add(name, late[0], late[1], late[2], waiting, time.Since(began).Seconds())
	second.close()
}

// depth counts also what a queue holds to hand it on.
func (b *blocked) depth(queue string) int {
	b.t.Helper()
	for line := range strings.Lines(b.broker.Ctl("list_queues", "name", "messages")) {
		if name, n, _ := strings.Cut(strings.TrimSpace(line), "\t"); name == queue {
			depth := must(strconv.Atoi(n))(b.t)

			return depth
		}
	}
	b.t.Fatalf("queue %s is not there", queue)

	return 0
}
