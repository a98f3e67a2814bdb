package tests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

func cyclePolicy() config.Policy {
	return config.Policy{Strategy: config.StrategyCycle, Delays: ms(200), Retries: 3}
}

func redeliveryPolicy() config.Policy {
	return config.Policy{Strategy: config.StrategyRedelivery, Delays: ms(200), Retries: 3}
}

func nativePolicy() config.Policy {
	return config.Policy{Strategy: config.StrategyNative, Delays: ms(200), Retries: 3}
}

// hasNative tells whether the broker has the delayed retry of the strategy native.
func hasNative(t *testing.T) bool {
	t.Helper()
	return rabbit.New(t, brokertest.URI(t)).AtLeast(4, 3)
}

// eachStrategy runs a test with each strategy that the broker has.
// TestStrategy_NativeNeedsItsVersion is what an older one has instead of native.
func eachStrategy(t *testing.T, test func(t *testing.T, policy config.Policy)) {
	t.Helper()
	t.Parallel()
	linear := nativePolicy()
	linear.Delays = ms(150, 300, 450)
	policies := map[string]config.Policy{"cycle": cyclePolicy(), "redelivery": redeliveryPolicy()}
	if hasNative(t) {
		policies["native"], policies["native linear"] = nativePolicy(), linear
	}
	each(t, policies, func(t *testing.T, _ string, policy config.Policy) {
		test(t, policy)
	})
}

func withPolicy(t *testing.T, policy config.Policy) setup {
	t.Helper()
	s := setup{URI: brokertest.URI(t), QueueType: "quorum", Options: amqpretry.Options{
		Policies: config.Policies{Default: policy}, Concurrency: 4}}
	s.Options.Names.Shared = uniqueName("shared") // the test removes what it has declared
	s.Options.CloseTimeout = time.Minute          // so that no close gives up what is in hand

	return s
}

func startPolicy(t *testing.T, policy config.Policy, handler func(*message.Message) error) *service {
	t.Helper()
	s := withPolicy(t, policy)
	s.Handler = handler

	return start(t, s)
}

func (s *service) byBroker() int {
	return len(slices.DeleteFunc(s.Events(retry.EventRetried), func(e retry.Event) bool { return !e.Verdict.ByBroker }))
}

func (s *service) byCopy() int { return len(s.Events(retry.EventRetried)) - s.byBroker() }

// P1 and P2: every message meets its fate, after the attempts of its policy, and no copy is
// published before the end.
func TestStrategy_Fates(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		svc := startPolicy(t, policy, byFate)
		ids := fates(100)
		svc.publish(ids...)
		svc.finish(ids, await.Bound, 0)
		for _, id := range ids {
			attempts := svc.Calls.attempts(id)
			assert.Equal(t, numbersTo(len(attempts)), attempts, id)
			if !slices.Contains([]string{"ok", "once", "twice"}, strings.Split(id, "-")[0]) {
				assert.Len(t, attempts, policy.MaxRetries()+1, id)
			}
		}
		assert.Zero(t, svc.byCopy(), "retries by copies")
		assert.NotZero(t, svc.byBroker())
	})
}

func numbersTo(n int) []int {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i + 1
	}

	return numbers
}

// P3: a retry comes when its delay is over, and not before; a redelivery at once.
func TestStrategy_Delays(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		policy.Delays = slices.Clone(policy.Delays)
		for i := range policy.Delays {
			policy.Delays[i] *= 4
		}
		svc := startPolicy(t, policy, alwaysFails)
		var late []string
		for round := range 4 { // a busy machine makes some of them late, which is measured again
			late = lateRetries(t, svc, policy, rabbit.Numbered(fmt.Sprintf("round-%d", round), 4), round)
			if len(late) == 0 {
				return
			}
			t.Logf("late, measuring again: %q", late)
		}
		assert.Empty(t, late)
	})
}

// lateRetries publishes messages that fail always, one after the other, and tells which of their
// retries came late.
func lateRetries(t *testing.T, svc *service, policy config.Policy, ids []string, round int) (late []string) {
	t.Helper()
	for _, id := range ids {
		svc.publish(id)
		<-time.After(200 * time.Millisecond)
	}
	svc.Broker.Has(svc.dlq(), (round+1)*len(ids))
	for i := range 3 {
		var waits []time.Duration
		for _, id := range ids {
			calls := svc.Calls.of(id)
			require.Len(t, calls, 4)
			waits = append(waits, calls[i+1].At.Sub(calls[i].At))
		}
		slices.Sort(waits)
		var delay time.Duration
		first := 400 * time.Millisecond // half of the delay that a redelivery has not
		if policy.Strategy != config.StrategyRedelivery {
			delay, first = policy.Delay(i+1), 600*time.Millisecond
			assert.GreaterOrEqual(t, waits[0], delay-5*time.Millisecond)
		}
		if waits[0] > delay+first || waits[len(waits)-1] > delay+3*time.Second {
			late = append(late, fmt.Sprintf("retry %d after %s instead of %s", i+1, waits, delay))
		}
	}

	return late
}

// P4 and P6: the dead letter is the message, with what it died of; what the broker cannot know is
// left out.
func TestStrategy_DeadLetter(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		s := withPolicy(t, policy)
		var lasts []bool
		s.Handler = func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			lasts = append(lasts, attempt.Last)
			return fmt.Errorf("failure %d", attempt.Number)
		}
		s.Options.Concurrency = 1
		svc := start(t, s)
		published := rabbit.Message("a", "body")
		published.Headers["mine"], published.MessageId, published.ContentType = "kept", "id-a", "text/x-own"
		svc.Broker.Publish(svc.Queue, published)
		letter := svc.Broker.Take(svc.dlq(), 1)[0]
		assert.Equal(t, []string{"body", "kept", "id-a", "text/x-own"},
			[]string{string(letter.Body), rabbit.Text(letter, "mine"), letter.MessageId, letter.ContentType})
		assert.Equal(t, []string{"-1", "4", "exhausted", "failure 4", svc.Queue}, []string{
			rabbit.Text(letter, header.Count), rabbit.Text(letter, header.Attempts), rabbit.Text(letter, header.Reason),
			rabbit.Text(letter, header.Error), rabbit.Text(letter, header.RoutingKey)})
		assert.Equal(t, []bool{false, false, false, true}, lasts)
		assert.Equal(t, 3, svc.byBroker())
	})
}

// A permanent failure is the end at once; a dropped message is gone; a panic is a failure.
func TestStrategy_Errors(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		svc := startPolicy(t, policy, func(msg *message.Message) error {
			switch msg.UUID {
			case "permanent":
				return retry.Permanent(errFate)
			case "drop":
				return retry.Drop(errFate)
			default:
				panic("oops")
			}
		})
		svc.publish("permanent", "drop", "panic")
		svc.Broker.Has(svc.dlq(), 2)
		await.Until(t, func() bool { return svc.Calls.count() >= 6 }, "all are handled")
		assert.Zero(t, svc.Broker.Depth(svc.Queue))
		assert.Equal(t, map[string]string{"permanent": "permanent", "panic": "panic"},
			reasons(svc.Broker.Drain(svc.dlq())))
		assert.Equal(t, map[string]int{"permanent": 1, "drop": 1, "panic": 4}, svc.Calls.ids())
	})
}

// What the broker cannot do is done by a copy, and the attempts go on counting.
func TestStrategy_Copies(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		svc := startPolicy(t, policy, func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			switch {
			case msg.UUID == "after" && attempt.Number == 2:
				return retry.RetryAfter(policy.Delay(1), errFate)
			case msg.UUID == "postponed" && attempt.Calls < 2:
				return retry.Postpone(policy.Delay(1))
			default:
				return errFate
			}
		})
		svc.publish("after", "postponed")
		svc.Broker.Has(svc.dlq(), 2)
		assert.Equal(t, []int{1, 2, 3, 4}, svc.Calls.attempts("after"))
		assert.Equal(t, []int{1, 1, 1, 2, 3, 4}, svc.Calls.attempts("postponed"))
		assert.Len(t, svc.Events(retry.EventPostponed), 2)
		assert.NotZero(t, svc.byCopy())
		assert.NotZero(t, svc.byBroker())
	})
}

// P5: a message expires by its age, also if the broker brings it back, and also if only a copy can
// tell its age.
func TestStrategy_MaxAge(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		// More than fit into the age, and the second by which a timestamp, which has whole ones,
		// may be late.
		policy.MaxAge, policy.Retries = 2500*time.Millisecond, 60
		policy.Delays = policy.Delays[:1]
		s := withPolicy(t, policy)
		s.Handler = func(*message.Message) error {
			wait(100 * time.Millisecond)
			return errFate
		}
		svc := start(t, s)
		stamped := rabbit.Message("stamped", "")
		stamped.Timestamp = time.Now()
		svc.Broker.Publish(svc.Queue, stamped, rabbit.Message("plain", ""))
		svc.Broker.Has(svc.dlq(), 2)
		assert.Equal(t, map[string]string{"stamped": "expired", "plain": "expired"},
			reasons(svc.Broker.Drain(svc.dlq())))
	})
}

// P10: a message with an expiration waits as a copy: its queue would drop it without a word of what
// it has failed of.
func TestStrategy_Expiration(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		policy.Retries = 30
		policy.Delays = []time.Duration{policy.Delays[0]}
		svc := startPolicy(t, policy, alwaysFails)
		svc.publish("first") // so that the consumer is there
		await.Until(t, func() bool { return svc.Calls.count() > 0 }, "it consumes")
		expires := rabbit.Message("expires", "")
		expires.Expiration = "3000"
		svc.Broker.Publish(svc.Queue, expires)
		await.Until(t, func() bool {
			return slices.ContainsFunc(svc.Letters(), func(e retry.Event) bool { return e.Message.UUID == "expires" })
		}, "it dies")
		reasons := []string{"expired"}
		if policy.Strategy == config.StrategyRedelivery {
			// once it is a copy, the broker brings it back without a wait: whichever comes first
			reasons = append(reasons, "exhausted")
		}
		for _, letter := range svc.Broker.Drain(svc.dlq()) {
			if rabbit.UUID(letter) == "expires" {
				assert.Contains(t, reasons, rabbit.Text(letter, header.Reason))
				assert.Equal(t, errFate.Error(), rabbit.Text(letter, header.Error))
			}
		}
		assert.Greater(t, len(svc.Calls.of("expires")), 1)
	})
}

// A replayed dead letter has all its attempts again, and its story goes on.
func TestStrategy_Replay(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		svc := startPolicy(t, policy, alwaysFails)
		svc.publish("a")
		svc.Broker.Has(svc.dlq(), 1)
		letters := lettersOf(t, svc)
		report := must(letters.Run(t.Context(), dlq.Plan{Kind: dlq.Replay}))(t)
		require.Equal(t, 1, report.Done)
		await.Until(t, func() bool { return len(svc.Letters()) == 2 }, "it dies again")
		letter := svc.Broker.Take(svc.dlq(), 1)[0]
		assert.Equal(t, []string{"8", "1"}, []string{rabbit.Text(letter, header.Attempts), rabbit.Text(letter,
			header.Replays)})
		assert.Equal(t, []int{1, 2, 3, 4, 1, 2, 3, 4}, svc.Calls.attempts("a"))
	})
}

// A publisher's x-death and counts are worth nothing, and nothing is lost or stuck because of them.
func TestStrategy_ForgedHeaders(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		svc := startPolicy(t, policy, alwaysFails)
		deaths := func(deaths ...amqp091.Table) []any {
			list := []any{}
			for _, d := range deaths {
				d["exchange"], d["routing-keys"], d["time"] = "", []any{svc.Queue}, time.Now()
				list = append(list, d)
			}
			return list
		}
		forged := map[string]amqp091.Table{
			"counts": {"x-delivery-count": int64(100), "x-acquired-count": int64(100)},
			"deaths of another queue": {"x-death": deaths(amqp091.Table{"queue": "other", "reason": "expired",
				"count": int64(7)}),
				"x-first-death-queue": "other", "x-first-death-reason": "expired"},
			"an unknown reason": {"x-death": deaths(amqp091.Table{"queue": svc.Queue, "reason": "bored",
				"count": int64(7)}),
				"x-first-death-queue": svc.Queue, "x-first-death-reason": "bored", "x-first-death-exchange": ""},
			"no deaths at all": {"x-death": "none", "x-first-death-reason": int32(5)},
			"our headers": {header.Version: "1", header.Count: "3", header.Queue: svc.Queue,
				header.Delay: "200ms"},
			"the queue's own past": {"x-death": deaths(amqp091.Table{"queue": svc.Queue, "reason": "expired",
				"count": int64(9)}),
				"x-first-death-queue": svc.Queue, "x-first-death-reason": "expired", "x-first-death-exchange": ""},
		}
		for id, headers := range forged {
			m := rabbit.Message(id, "")
			for key, value := range headers {
				m.Headers[key] = value
			}
			svc.Broker.Publish(svc.Queue, m)
		}
		svc.Broker.Has(svc.dlq(), len(forged))
		assert.Zero(t, svc.Broker.Depth(svc.Queue))
		for id := range forged {
			assert.Equal(t, []int{1, 2, 3, 4}, svc.Calls.attempts(id), id)
		}
		// what was not forged takes its way all the same
		svc.publish("honest")
		svc.Broker.Has(svc.dlq(), len(forged)+1)
	})
}

// A message that other services have dead-lettered into the queue has no failures here.
func TestStrategy_DeadLetteredInto(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		svc := startPolicy(t, policy, alwaysFails)
		from := uniqueName("from")
		svc.Broker.Declare(from, amqp091.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": svc.Queue})
		svc.Broker.Publish(from, rabbit.Message("a", ""))
		svc.Broker.Do(func(channel *amqp091.Channel) error {
			for range 6 { // returned, which counts, and rejected at last
				if err := getOne(t, channel, from).Reject(true); err != nil {
					return err
				}
			}
			return getOne(t, channel, from).Reject(false)
		})
		svc.Broker.Has(svc.dlq(), 1)
		assert.Equal(t, []int{1, 2, 3, 4}, svc.Calls.attempts("a"))
	})
}

func getOne(t *testing.T, channel *amqp091.Channel, queue string) (d amqp091.Delivery) {
	t.Helper()
	await.Until(t, func() (ok bool) {
		var err error
		d, ok, err = channel.Get(queue, false)
		require.NoError(t, err)
		return ok
	}, "a message in queue %s", queue)

	return d
}

// P9: what its consumers die of ends in the dead-letter queue. Where a return is an attempt, the
// deaths of all attempts but the last use one up each.
func TestStrategy_Killer(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		policy.CrashLimit, policy.Retries = 3, 2
		policy.Delays = policy.Delays[:1]
		s := withPolicy(t, policy)
		network := newProxy(t, s.URI)
		s.URI, s.Options.Concurrency = network.URI, 1
		s.Handler = func(msg *message.Message) error {
			if msg.UUID == "killer" {
				network.cut(subscriber) // as if the process had died
				<-msg.Context().Done()
			}
			return nil
		}
		svc := start(t, s)
		svc.publish("killer", "a", "b")
		await.Until(t, func() bool { return len(svc.Letters()) == 1 }, "its end")
		letter := svc.Broker.Take(svc.dlq(), 1)[0]
		assert.Equal(t, []string{"killer", "crashed"}, []string{rabbit.UUID(letter), rabbit.Text(letter,
			header.Reason)})
		want := policy.CrashLimit * (policy.MaxRetries() + 1)
		if policy.Strategy.CountsReturns() {
			want = policy.MaxRetries() + policy.CrashLimit // one cannot be told from the other
		}
		assert.Len(t, svc.Calls.of("killer"), want)
		await.Until(t, func() bool { return svc.Calls.ids()["a"] > 0 && svc.Calls.ids()["b"] > 0 }, "the others")
		assert.Zero(t, svc.Broker.Depth(svc.Queue))
	})
}

// The neighbours of a message that its consumers die of live on: after a death, those that were in
// hand are handled one at a time.
func TestStrategy_Neighbours(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		policy.Delays, policy.CrashLimit = policy.Delays[:1], 10
		if policy.Strategy == config.StrategyRedelivery {
			// The next death that counts against a neighbour would be its end. Not so under native,
			// where all of them come back later, when the consumer has begun to take others.
			policy.Retries, policy.CrashLimit = 1, 1
		}
		s := withPolicy(t, policy)
		network := newProxy(t, s.URI)
		s.URI, s.Prefetch = network.URI, 20
		s.Handler = func(msg *message.Message) error {
			if msg.UUID == "killer" {
				network.cut(subscriber)
				<-msg.Context().Done()
				return nil
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-msg.Context().Done():
			}
			return nil
		}
		svc := newService(t, s)
		require.NoError(t, svc.Sub.SubscribeInitialize(svc.Queue))
		ids := rabbit.Numbered("m", 60)
		svc.publish(slices.Concat(ids[:1], []string{"killer"}, ids[1:])...)
		svc.run()
		await.Until(t, func() bool { return len(svc.Letters()) > 0 && svc.Broker.Depth(svc.Queue) == 0 },
			"the killer's end")
		assert.Equal(t, map[string]string{"killer": "crashed"}, reasons(svc.Broker.Drain(svc.dlq())))
	})
}

// The rejections of a cycle are no deaths, however many there are: RabbitMQ 4.0 to 4.2 count both,
// and the counts travel along.
func TestStrategy_CycleRejectionsAreNoCrashes(t *testing.T) {
	t.Parallel()
	policy := cyclePolicy()
	policy.Delays, policy.Retries, policy.CrashLimit = ms(20), 25, 2
	svc := startPolicy(t, policy, alwaysFails)
	svc.publish("a")
	svc.Broker.Has(svc.dlq(), 1)
	assert.Equal(t, map[string]string{"a": "exhausted"}, reasons(svc.Broker.Drain(svc.dlq())))
	assert.Equal(t, numbersTo(26), svc.Calls.attempts("a"))
	assert.Equal(t, 25, svc.byBroker())
}

// A redelivery has more attempts than the broker's own delivery limit allows, which nobody has set
// here.
func TestStrategy_MoreReturnsThanTheLimit(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		policy.Delays, policy.Retries = ms(20), 45
		svc := startPolicy(t, policy, alwaysFails)
		svc.publish("a")
		await.Until(t, func() bool { return len(svc.Letters()) == 1 }, "its end")
		assert.Equal(t, numbersTo(46), svc.Calls.attempts("a"))
		if policy.Strategy.CountsReturns() {
			assert.Equal(t, 2, svc.byCopy(), "with each the broker counts anew")
		}
	})
}

// Only what was rejected goes round: what has died of anything else is a dead letter, and the queue
// goes on.
func TestStrategy_CycleOfOtherDeaths(t *testing.T) {
	t.Parallel()
	for _, classic := range []bool{false, true} {
		policy := cyclePolicy()
		policy.ClassicQueues = classic
		s := withPolicy(t, policy)
		s.Handler = alwaysFails
		svc := newService(t, s)
		require.NoError(t, svc.Sub.SubscribeInitialize(svc.Queue))
		var ids []string
		for i := range 50 { // more than would stop the queue's dead-lettering if they led nowhere
			m := rabbit.Message(fmt.Sprintf("late-%d", i), "")
			m.Expiration = "1"
			svc.Broker.Publish(svc.Queue, m)
			ids = append(ids, m.MessageId)
		}
		svc.Broker.Has(svc.dlq(), len(ids))
		svc.publish("a")
		svc.run()
		svc.Broker.Has(svc.dlq(), len(ids)+1)
		assert.Equal(t, []int{1, 2, 3, 4}, svc.Calls.attempts("a"))
		assert.Len(t, svc.Calls.ids(), 1)

		soon := rabbit.Message("soon", "")
		soon.Expiration = "60000"
		svc.Broker.Publish(svc.Queue, soon)
		svc.Broker.Has(svc.dlq(), len(ids)+2)
		assert.Equal(t, []int{1, 2, 3, 4}, svc.Calls.attempts("soon"))
		svc.close()
	}
}

// A header frame that would become too large on its return goes by a copy, which makes room.
func TestStrategy_LargeHeaders(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		svc := startPolicy(t, policy, alwaysFails)
		large := rabbit.Message("large", "")
		large.Headers["large"] = strings.Repeat("x", 131072-450)
		svc.Broker.Publish(svc.Queue, large)
		svc.publish("small")
		svc.Broker.Has(svc.dlq(), 2)
		assert.Equal(t, map[string]string{"large": "too-large", "small": "exhausted"},
			reasons(svc.Broker.Drain(svc.dlq())))
		assert.Empty(t, svc.Logs.with("Channel closed"))
	})
}

// P11: a service that closes rejects nothing: what it has in hand is handled later, or by others.
func TestStrategy_Close(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		s := withPolicy(t, policy)
		s.Options.Concurrency, s.Options.CloseTimeout = 4, 300*time.Millisecond
		release := make(chan struct{})
		t.Cleanup(func() { close(release) })
		s.Handler = func(msg *message.Message) error {
			select {
			case <-msg.Context().Done():
				return msg.Context().Err()
			case <-release:
				return nil
			}
		}
		svc := start(t, s)
		ids := rabbit.Numbered("m", 20)
		svc.publish(ids...)
		await.Until(t, func() bool { return svc.Calls.count() == 4 }, "four are in hand")
		svc.close()
		await.Until(t, func() bool {
			return svc.Broker.Depth(svc.Queue) == 20 || policy.Strategy ==
				config.StrategyNative && len(svc.Broker.Drain(svc.Queue)) > 0
		}, "all go back")
		assert.Zero(t, svc.Broker.Depth(svc.dlq()))
		plan := must(svc.Retrier.Plan(svc.Queue))(t)
		for _, q := range plan.Queues {
			assert.Zero(t, svc.Broker.Depth(q.Name), "rejected into %s", q.Name)
		}
		assert.Empty(t, svc.Events(retry.EventFailed))
	})
}

// What a strategy cannot work with is refused before the broker is touched, all at once.
func TestStrategy_Refused(t *testing.T) {
	t.Parallel()
	conf := func(arguments amqp091.Table) amqp.Config {
		c := amqp.NewDurableQueueConfig("amqp://nobody:listens@127.0.0.1:1/")
		c.Queue.Arguments = arguments
		return c
	}
	policies := config.Policies{
		Default: redeliveryPolicy(),
		Topics: map[string]config.Policy{"cycle": cyclePolicy(), "policy": {Strategy: config.StrategyRedelivery,
			Protect: config.ProtectionPolicy}},
	}
	_, err := adapter.New(conf(amqp091.Table{"x-queue-type": "classic", "x-overflow": "drop-head",
		"x-message-ttl": 5}),
		amqpretry.Options{Policies: policies, AssumeTopology: true})
	for _, wanted := range []string{
		`Options.AssumeTopology: not possible with the strategy redelivery of Options.Policies.Default: nobody could ` +
			`see whether ` +
			`the main queue has what it needs, and its messages could be lost: must be left out, got true`,
		`Config.Queue.Arguments["x-queue-type"]: differs from what is needed by the strategy redelivery of ` +
			`Options.Policies.Default: must be left out, or "quorum", got "classic"`,
		`Config.Queue.Arguments["x-overflow"]: differs from what is needed by the strategy cycle of ` +
			`Options.Policies.Topics["cycle"]: must be left out, or "reject-publish", got "drop-head"`,
		`Config.Queue.Arguments["x-message-ttl"]: not possible with the strategy cycle of ` +
			`Options.Policies.Topics["cycle"]: must be left out, got 5`,
	} {
		require.ErrorContains(t, err, wanted)
	}
	_, err = adapter.New(conf(nil), amqpretry.Options{Policies: policies})
	require.ErrorContains(t, err,
		`Config.Queue.Arguments["x-queue-type"]: a policy of the broker cannot set it, and it is `+
			`needed by the strategy redelivery of Options.Policies.Topics["policy"]: must be "quorum", got "none"`)

	retrier := newRetrier(t, conf(amqp091.Table{"x-dead-letter-routing-key": "elsewhere"}), amqpretry.Options{
		Policies: config.Policies{Default: cyclePolicy()}})
	_, err = retrier.Plan("orders")
	require.NoError(t, err)
}

// A main queue that exists without what its strategy needs is left as it is, and the error says
// what to do.
func TestStrategy_QueueExists(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		s := withPolicy(t, policy)
		s.Queue = uniqueName("exists")
		newRabbit(t, s.URI).Declare(s.Queue, amqp091.Table{"x-queue-type": "quorum"})
		s.Handler = succeed
		svc := newService(t, s)
		_, err := svc.Sub.Subscribe(t.Context(), svc.Queue)
		require.ErrorAs(t, err, new(*topology.ConflictError))
		require.ErrorContains(t, err,
			fmt.Sprintf("queue %q lacks arguments that the strategy %s of topic %q needs", svc.Queue,
				policy.Strategy, svc.Queue))
		if policy.Strategy == config.StrategyCycle {
			assert.NotContains(t, err.Error(), "set_policy", "nobody could see whether it is there")
		} else {
			assert.Contains(t, err.Error(), "set_policy")
		}
	})
}

// A main queue keeps a delivery limit of its own; where it ends messages before their retries do,
// the log says so.
func TestStrategy_OwnDeliveryLimit(t *testing.T) {
	t.Parallel()
	policies := map[string]config.Policy{"redelivery": redeliveryPolicy()}
	if hasNative(t) {
		policies["native"] = nativePolicy()
	}
	each(t, policies, func(t *testing.T, _ string, policy config.Policy) {
		const told = "RabbitMQ dead-letters messages before their last retry"
		policy.Retries = 5
		s := withPolicy(t, policy)
		s.Queue = uniqueName("limited")
		s.Handler = func(*message.Message) error { return errNever }
		s.Tiers = true
		s.Configure = func(c *amqp.Config) { c.Queue.Arguments["x-delivery-limit"] = int64(3) }
		limited := start(t, s)
		require.Len(t, limited.Logs.with(told), 1)
		assert.Equal(t, "3, and 5 retries", limited.Logs.with(told)[0].Fields["delivery_limit"])
		limited.publish("dropped")
		dead := limited.Broker.Take(limited.dlq(), 1)
		require.Len(t, dead, 1)
		assert.Nil(t, dead[0].Headers[header.Count], "by the broker, which adds none of our headers")
		assert.Len(t, limited.Calls.of("dropped"), 4)

		s.Configure = nil
		_, err := newService(t, s).Sub.Subscribe(t.Context(), s.Queue)
		require.ErrorContains(t, err, `or Config.Queue.Arguments["x-delivery-limit"] = 3, which keeps its own`)
		assert.NotContains(t, err.Error(), "set_policy", "which would not change that")
		assert.NotContains(t, err.Error(), "declare it as it is", "which would be refused")
		limited.close()

		policy.Retries = 3
		s.Options.Policies.Default = policy
		s.Configure = func(c *amqp.Config) { c.Queue.Arguments["x-delivery-limit"] = int64(3) }
		enough := start(t, s)
		assert.Empty(t, enough.Logs.with(told))
		enough.publish("exhausted")
		dead = enough.Broker.Take(enough.dlq(), 1)
		require.Len(t, dead, 1)
		assert.Equal(t, "exhausted", dead[0].Headers[header.Reason])
	})
}

// Watermill's own subscriber cannot reject without requeueing all that it has at a shutdown.
func TestStrategy_StockSubscriberIsRefused(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		s := withPolicy(t, policy)
		s.Handler = succeed
		svc := newService(t, s)
		stock := must(amqp.NewSubscriber(svc.Retrier.Config(), svc.Logs))(t)
		t.Cleanup(func() { _ = stock.Close() })
		_, err := stock.Subscribe(t.Context(), svc.Queue)
		refused := errorAs[*topology.StrategyError](t, err)
		assert.Equal(t, topology.StrategyError{Queue: svc.Queue, Strategy: policy.Strategy, Stock: true}, *refused)
	})
}

// A broker that would accept the arguments of the strategy native and ignore them is refused at
// the start.
func TestStrategy_NativeNeedsItsVersion(t *testing.T) {
	t.Parallel()
	s := withPolicy(t, nativePolicy())
	s.Handler = succeed
	svc := newService(t, s)
	_, err := svc.Sub.Subscribe(t.Context(), svc.Queue)
	if hasNative(t) {
		require.NoError(t, err)
		return
	}
	refused := errorAs[*topology.StrategyError](t, err)
	assert.Equal(t, topology.StrategyError{Queue: svc.Queue, Strategy: config.StrategyNative,
		Version: svc.Broker.Version()}, *refused)
	assert.Equal(t, -1, svc.Broker.Depth(svc.Queue), "nothing was declared")
}

// P7: copies with protected arguments and redelivery have the same main queue, so one can take the
// place of the other under load: nothing is lost, and nothing is there twice.
func TestStrategy_ReplacesAnother(t *testing.T) {
	t.Parallel()
	copied := config.Policy{Delays: ms(200), Retries: 3, Protect: config.ProtectionArguments}
	each(t, map[string][2]config.Policy{
		"redelivery instead of copies": {copied, redeliveryPolicy()},
		"copies instead of redelivery": {redeliveryPolicy(), copied},
	}, func(t *testing.T, _ string, policies [2]config.Policy) {
		version := func(policy config.Policy, queue string) *service {
			s := withPolicy(t, policy)
			s.Queue, s.Handler = queue, byFate
			return start(t, s)
		}
		queue := uniqueName("change")
		first, second := version(policies[0], queue), version(policies[1], queue)
		var ids []string
		for pace := time.NewTicker(100 * time.Millisecond); len(ids) < 300; <-pace.C {
			n := len(ids)
			for i := range 10 {
				ids = append(ids, []string{"ok", "never", "panic", "ok", "ok"}[i%5]+"-"+fmt.Sprint(n+i))
			}
			first.publish(ids[n:]...)
			if n == 150 {
				first.close()
			}
		}
		letters := doomed(ids)
		await.Until(t, func() bool {
			succeeded := map[string]bool{}
			for _, svc := range []*service{first, second} {
				for _, c := range svc.Calls.All() {
					succeeded[c.ID] = succeeded[c.ID] || succeeds(c.ID, c.Attempt)
				}
			}
			done := 0
			for _, ok := range succeeded {
				if ok {
					done++
				}
			}

			return done == len(ids)-len(letters) && first.deadLettered()+second.deadLettered() == len(letters)
		}, "every message ends")
		second.close()
		assert.Equal(t, letters, reasons(second.Broker.Drain(second.dlq())))
		assert.Empty(t, second.Broker.Drain(queue))
		assert.NotZero(t, first.Calls.count())
		assert.NotZero(t, second.Calls.count())
	})
}

// What an operator's policy gives to a queue that exists is as good as arguments.
func TestStrategy_ByPolicy_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	policies := map[string]config.Policy{"redelivery": redeliveryPolicy()}
	if rabbit.New(t, broker.URI).AtLeast(4, 3) {
		policies["native"] = nativePolicy()
	}
	for name, policy := range policies {
		policy.Protect = config.ProtectionPolicy
		s := withPolicy(t, policy)
		s.URI, s.Queue, s.Handler = broker.URI, name, byFate
		newRabbit(t, broker.URI).Declare(s.Queue, amqp091.Table{"x-queue-type": "quorum"})
		svc := newService(t, s)
		plan := must(svc.Retrier.Plan(name))(t)
		set, ok := plan.MainPolicy("/")
		require.True(t, ok)
		broker.Ctl("set_policy", "--apply-to", "queues", set.Name, set.Pattern, set.Definition)
		svc.run()
		ids := fates(30)
		began := time.Now()
		svc.publish(ids...)
		svc.Broker.Has(svc.dlq(), len(doomed(ids)))
		if name == "native" {
			assert.Greater(t, time.Since(began), 3*policy.Delay(1), "the broker delays")
		}
		svc.finish(ids, await.Bound, 0)
		assert.Zero(t, svc.byCopy())
	}
}

// Somebody deletes what a dead-letter cycle goes through, while messages are in it: the main queue
// keeps what it cannot dead-letter, the service declares what is missing, and nothing is lost.
func TestStrategy_CycleTopologyDeleted_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	broker.Ctl("eval", "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 1000).")
	s := withPolicy(t, cyclePolicy())
	s.URI, s.Handler = broker.URI, byFate
	svc := start(t, s)
	plan := must(svc.Retrier.Plan(svc.Queue))(t)
	rejected := plan.MainArguments["x-dead-letter-exchange"].(string)
	ids := fates(100)
	svc.publish(ids[:50]...)
	await.Until(t, func() bool { return svc.byBroker() > 10 }, "some go round")
	svc.Broker.Do(func(channel *amqp091.Channel) error { return channel.ExchangeDelete(rejected, false, false) })
	svc.publish(ids[50:]...)
	svc.finish(ids, await.Bound, 0)
	assert.Zero(t, svc.byCopy())
}

// A close while messages fail loses nothing and doubles nothing, whatever it comes between.
func TestStrategy_CloseWhileFailing(t *testing.T) {
	eachStrategy(t, func(t *testing.T, policy config.Policy) {
		queue, ids := uniqueName("closing"), rabbit.Numbered("m", 200)
		dead, handled := map[string]int{}, map[string]bool{}
		var last *service
		same := withPolicy(t, policy)
		for round := range 4 {
			s := same
			s.Queue, s.Prefetch = queue, 50
			ctx, cancel := context.WithCancel(t.Context())
			t.Cleanup(cancel)
			s.Handler = func(msg *message.Message) error {
				attempt, _ := retry.AttemptFromContext(msg.Context())
				if round == 3 && attempt.Last {
					return nil
				}
				select {
				case <-time.After(5 * time.Millisecond):
				case <-ctx.Done():
				}
				return errFate
			}
			last = start(t, s)
			if round == 0 {
				last.publish(ids...)
			}
			if round < 3 {
				<-time.After(time.Duration(100+60*round) * time.Millisecond)
				last.close()
			}
			for _, l := range last.Letters() {
				if round < 3 {
					dead[l.Message.UUID]++
				}
			}
		}
		await.Until(t, func() bool {
			for _, e := range last.Events(retry.EventSucceeded) {
				handled[e.Message.UUID] = true
			}
			return len(handled)+len(dead)+len(last.Letters()) >= len(ids)
		}, "every message ends: %d dead before", len(dead))
		for _, l := range last.Letters() {
			dead[l.Message.UUID]++
		}
		last.close()
		letters := last.Broker.Drain(last.dlq())
		found := map[string]int{}
		for _, d := range letters {
			found[rabbit.UUID(d)]++
		}
		assert.Equal(t, dead, found, "dead letters, each once")
		for _, id := range ids {
			assert.NotEqual(t, handled[id], dead[id] > 0, "%s: handled %v, dead %d", id, handled[id], dead[id])
		}
		plan := must(last.Retrier.Plan(queue))(t)
		for _, q := range plan.Queues {
			assert.Empty(t, last.Broker.Drain(q.Name), q.Name)
		}
		assert.Empty(t, last.Broker.Drain(queue))
	})
}
