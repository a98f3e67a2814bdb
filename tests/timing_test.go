package tests

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

// lateness is how much later than its delay a retry may be on an idle broker. Quorum queues may
// round a fraction of a millisecond down.
const (
	lateness = 100 * time.Millisecond
	rounding = time.Millisecond
)

// TestAttemptTimes measures from the failure of an attempt to the call of the next. It is not
// parallel: other tests' load would be measured as well. What else the machine is doing is measured
// beside it, with a retry queue that the library has no part in, and is not held against it; what
// is late all the same is measured again; what is early fails at once.
func TestAttemptTimes(t *testing.T) {
	var late []string
	for range 3 {
		if late = measureAttempts(t); len(late) == 0 {
			return
		}
		t.Logf("late, measuring again: %q", late)
	}
	require.Empty(t, late)
}

// noise is how late messages come back by themselves from a queue with a TTL.
type noise struct{ records[disturbance] }

type disturbance struct {
	due time.Time
	by  time.Duration
}

func measureNoise(t *testing.T) *noise {
	t.Helper()
	const ttl = 200 * time.Millisecond
	n, queue := &noise{}, uniqueName("noise")
	broker := newRabbit(t, brokertest.URI(t))

	broker.Declare(queue, nil)
	broker.Declare(queue+".wait", amqp091.Table{
		"x-message-ttl": ttl.Milliseconds(), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue,
	})
	conn := broker.Dial()
	ch := must(conn.Channel())(t)
	back := rabbit.Consume(t, ch, queue)

	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(2)
	go func() {
		defer wg.Done()
		for {
			select {
			case <-time.After(25 * time.Millisecond):
				due := time.Now().Add(ttl)
				_ = ch.Publish("", queue+".wait", false, false,
					amqp091.Publishing{MessageId: due.Format(time.RFC3339Nano)})
			case <-stop:
				return
			}
		}
	}()
	go func() {
		defer wg.Done()
		for d := range back {
			due, err := time.Parse(time.RFC3339Nano, d.MessageId)
			if err != nil {
				continue
			}
			n.put(disturbance{due, time.Since(due)})
		}
	}()
	t.Cleanup(func() {
		close(stop)
		_ = conn.Close()
		wg.Wait()
	})

	return n
}

func (n *noise) within(from, to time.Time) time.Duration {
	var worst time.Duration
	for _, d := range n.All() {
		if d.due.After(from) && d.due.Before(to) {
			worst = max(worst, d.by)
		}
	}

	return worst
}

func measureAttempts(t *testing.T) (late []string) {
	t.Helper()
	delays := ms(500, 1000, 2000)
	ids := rabbit.Numbered("m", 3)
	noise := measureNoise(t)

	type run struct {
		name string
		seen *seen
	}
	var runs []run
	for name, c := range map[string]struct {
		main    string
		classic bool
		runner  func(*testing.T, setup) *service
	}{
		"classic": {"classic", true, start},
		"quorum":  {"quorum", false, start},
		"stock":   {"classic", false, startStock},
	} {
		s := &seen{}
		service := setup{QueueType: c.main}
		service.Options.Policies = config.Policies{Default: config.Policy{Delays: delays, ClassicQueues: c.classic}}
		service.Handler = s.handler(func(msg *message.Message) error {
			a, _ := retry.AttemptFromContext(msg.Context())
			if a.Number <= len(delays) {
				return fmt.Errorf("failure %d", a.Number)
			}

			return nil
		})
		svc := c.runner(t, service)
		svc.publish(ids...)
		runs = append(runs, run{name, s})
	}

	for _, r := range runs {
		await.Until(t, func() bool { return r.seen.count() == len(ids)*(len(delays)+1) }, "%s: all attempts", r.name)
		for _, id := range ids {
			attempts := r.seen.of(id)
			require.Len(t, attempts, len(delays)+1)
			for i, delay := range delays {
				took := attempts[i+1].At.Sub(attempts[i].Left)
				require.GreaterOrEqual(t, took, delay-rounding, "%s: %s was retried before its time", r.name, id)
				// Copying takes its part as well, at the beginning of the wait.
				disturbed := noise.within(attempts[i].At.Add(-time.Second), attempts[i+1].At)
				if took > delay+lateness+2*disturbed {
					late = append(late, fmt.Sprintf("%s: %s, retry %d after %s instead of %s, noise %s", r.name, id,
						i+1, took, delay, disturbed))
				}
			}
		}
	}

	return late
}

// Whoever looks at what waits gives it back again: that makes no retry early, whatever the broker
// counts.
func TestLookedAtRetriesStayPut(t *testing.T) {
	t.Parallel()
	const delay, looks = 4 * time.Second, 45
	for name, policies := range map[string]config.Policies{"own": retries(delay), "exact": exact(delay)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s seen
			c := setup{Handler: s.handler(failing(1))}
			c.Options.Policies = policies
			if name == "exact" { // with queues that nobody else looks into
				c.Options.Policies.Default.Ladder = ownLadder()
			}
			svc := start(t, c)
			plan := must(svc.Retrier.Plan(svc.Queue))(t)
			if plan.Ladder != nil {
				plan = plan.Ladder.Shared()
			}
			waits := plan.Queues[slices.IndexFunc(plan.Queues, func(q topology.Queue) bool { return q.Delay == delay })]
			svc.publish("seen")
			svc.Broker.Has(waits.Name, 1)
			ch := svc.Broker.Channel()
			for range looks {
				d, ok, err := ch.Get(waits.Name, false)
				require.NoError(t, err)
				require.True(t, ok, "it still waits")
				require.NoError(t, d.Reject(true))
			}
			await.Until(t, func() bool { return len(s.of("seen")) == 2 }, "it comes back")
			require.GreaterOrEqual(t, gaps(s.of("seen"))[0], delay-rounding)
		})
	}
}

const comeTooEarly = "Retries come back too early; they wait again"

// With a policy of the broker under which its retry queues keep nothing, a message waits all the
// same, goes to them only now and then, and the log tells once.
func TestEarly_TTLPolicy_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	asked := func(*message.Message) error { return retry.RetryAfter(4*time.Second, errNever) }
	fails := func(*message.Message) error { return errNever }
	cycle := cyclePolicy()
	cycle.Delays = ms(4000)
	type row struct {
		policies  config.Policies
		instances int
		first     func(*message.Message) error
	}
	each(t, map[string]row{
		"the handler's delay":   {retries(ms(300, 1500)...), 1, asked},
		"the policy's delay":    {retries(ms(4000)...), 1, fails},
		"of two instances":      {retries(ms(300, 1500)...), 2, asked},
		"of three instances":    {retries(ms(4000)...), 3, fails},
		"classic retry queues":  {classicQueues(ms(4000)...), 1, fails},
		"exact":                 {ownExact(ms(4000)...), 1, fails},
		"the dead-letter cycle": {config.Policies{Default: cycle}, 1, fails},
	}, func(t *testing.T, name string, test row) {
		var s seen
		c := setup{URI: broker.URI, Queue: uniqueName("early"), QueueType: "quorum", Tiers: name != "exact",
			Handler: s.handler(func(msg *message.Message) error {
				if len(s.of(msg.UUID)) > 1 {
					return nil
				}
				return test.first(msg)
			})}
		c.Options.Policies = test.policies
		instances := []*service{start(t, c)}
		for range test.instances - 1 {
			instances = append(instances, start(t, c))
		}
		waits := "^" + c.Queue + `\.retry\.`
		if policy := c.Options.Policies.Default; policy.Strategy == config.StrategyLadder {
			plan := must(instances[0].Retrier.Plan(c.Queue))(t)
			waits = "^" + strings.ReplaceAll(plan.Ladder.Name(), ".", `\.`) + `\.[0-9]+m?s$`
		}
		broker.API("PUT", map[string]any{"pattern": waits, "apply-to": "queues", "definition": map[string]any{
			"message-ttl": 0}}, "operator-policies", "/", c.Queue)
		ids := []string{"a", "b", "c"}
		if test.instances > 2 { // an instance knows of those only that come back to it
			for i := range 30 {
				ids = append(ids, strconv.Itoa(i))
			}
		}
		instances[0].publish(ids...)
		rounds := func() (n int) {
			for _, svc := range instances {
				n += len(svc.Events(retry.EventPostponed))
			}
			return n
		}
		await.Until(t, func() bool {
			return !slices.ContainsFunc(ids, func(id string) bool { return len(s.of(id)) < 2 })
		}, "all are retried")
		if test.instances == 1 || test.policies.Default.Delays[0] < time.Second {
			for _, id := range ids {
				assert.GreaterOrEqual(t, gaps(s.of(id))[0], 4*time.Second-rounding, id)
			}
		}
		// Pauses of 1, 2 and the rest, after some in which nobody knows yet.
		assert.LessOrEqual(t, rounds(), 4*len(ids)+30*(test.instances-1))
		early := 0
		for _, svc := range instances {
			assert.Len(t, svc.Logs.with(comeTooEarly), min(1, len(svc.Events(retry.EventReturnedEarly))))
			early += len(svc.Events(retry.EventReturnedEarly))
		}
		assert.NotZero(t, early)
		t.Logf("%d rounds, %d early", rounds(), early)
	})
}

func classicQueues(delays ...time.Duration) config.Policies {
	p := retries(delays...)
	p.Default.ClassicQueues = true

	return p
}

func ownExact(delays ...time.Duration) config.Policies {
	p := exact(delays...)
	p.Default.Ladder = ownLadder()

	return p
}

// Without the policy of the broker that they need, native retries are copies with their delay.
func TestEarly_NativeWithoutPolicy_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	if !newRabbit(t, broker.URI).AtLeast(4, 3) {
		return // refused there: TestStrategy_NativeNeedsItsVersion
	}
	const delay = 2 * time.Second
	var s seen
	c := setup{URI: broker.URI, QueueType: "quorum", Tiers: true, Handler: s.handler(failing(2))}
	c.Options.Policies.Default = config.Policy{Strategy: config.StrategyNative, Delays: []time.Duration{delay},
		Retries: 3, Protect: config.ProtectionPolicy}
	svc := start(t, c)
	svc.publish("first")
	await.Until(t, func() bool { return len(s.of("first")) == 3 }, "it succeeds")
	for _, gap := range gaps(s.of("first")) {
		assert.GreaterOrEqual(t, gap, delay-rounding)
	}
	require.Len(t, svc.Logs.with(comeTooEarly), 1)
	assert.Contains(t, svc.Logs.with(comeTooEarly)[0].String(), "delayed-retry-")
	assert.Equal(t, 1, svc.byBroker())

	svc.publish("second")
	await.Until(t, func() bool { return len(s.of("second")) == 3 }, "it succeeds")
	assert.Equal(t, 1, svc.byBroker(), "nothing is rejected any more")
	assert.Len(t, svc.Logs.with(comeTooEarly), 1)
	assert.Equal(t, []int{1, 2, 3}, svc.Calls.attempts("first"))
	assert.Equal(t, []int{1, 2, 3}, svc.Calls.attempts("second"))
}

// With the policy nothing is early, and the broker goes on to delay.
func TestEarly_NativeWithPolicy_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	if !newRabbit(t, broker.URI).AtLeast(4, 3) {
		return
	}
	var s seen
	c := setup{URI: broker.URI, Queue: uniqueName("early"), QueueType: "quorum", Tiers: true,
		Handler: s.handler(failing(2))}
	c.Options.Policies.Default = config.Policy{Strategy: config.StrategyNative, Delays: ms(500, 1000, 1500), Retries: 3,
		Protect: config.ProtectionPolicy}
	broker.API("PUT", map[string]any{"pattern": "^" + c.Queue + "$", "apply-to": "queues", "definition": map[string]any{
		"dead-letter-exchange": "", "dead-letter-routing-key": c.Queue + ".dlq",
		"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "delivery-limit": 1000,
		"delayed-retry-type": "failed", "delayed-retry-min": 500,
		"delayed-retry-max": 1500}}, "policies", "/", c.Queue)
	svc := start(t, c)
	svc.publish("a", "b", "c")
	await.Until(t, func() bool { return len(s.of("a"))+len(s.of("b"))+len(s.of("c")) == 9 }, "they succeed")
	assert.Empty(t, svc.Logs.with(comeTooEarly))
	assert.Equal(t, 6, svc.byBroker())
}

// Hundreds of messages that come back too early do not hold up the others: only some of them are
// kept for their pause.
func TestEarly_HealthyOnes_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	each(t, map[string]int{"adaptive": 0, "20": 20}, func(t *testing.T, _ string, prefetch int) {
		c := setup{Delays: ms(300, 1500), URI: broker.URI, Queue: uniqueName("early"), QueueType: "quorum", Tiers: true,
			Prefetch: prefetch, Handler: func(msg *message.Message) error {
				if strings.HasPrefix(msg.UUID, "late") {
					return retry.RetryAfter(time.Minute, errNever)
				}
				return nil
			}}
		svc := start(t, c)
		broker.API("PUT", map[string]any{"pattern": "^" + c.Queue + `\.retry\.`, "apply-to": "queues",
			"definition": map[string]any{"message-ttl": 0}}, "operator-policies", "/", c.Queue)
		const others = 300
		svc.publish(rabbit.Numbered("late", others)...)
		await.Until(t, func() bool {
			return len(svc.Events(retry.EventReturnedEarly)) > 1000
		}, "all come too early, again and again")
		var took []time.Duration
		rounds := len(svc.Events(retry.EventReturnedEarly))
		for i := range 11 {
			id, began := fmt.Sprint("healthy-", i), time.Now()
			svc.publish(id)
			await.Until(t, func() bool { return len(svc.Calls.of(id)) == 1 }, "the healthy one is handled")
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		rounds = (len(svc.Events(retry.EventReturnedEarly)) - rounds) / len(took)
		median := took[len(took)/2]
		t.Logf("a healthy message takes %s, in which the others make %d rounds", median, rounds)
		// On a busy machine it may take as long as the others in front of it need, not longer.
		assert.True(t, median < time.Second || rounds > others*5/6, "it waits although the others do not go round")
	})
}
