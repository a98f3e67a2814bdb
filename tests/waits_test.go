package tests

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// bothSubscribers runs a test with the retrier's own subscriber and with the stock one.
func bothSubscribers(t *testing.T, test func(t *testing.T, run func(*testing.T, setup) *service)) {
	t.Helper()
	each(t, map[string]func(*testing.T, setup) *service{"own": start, "stock": startStock},
		func(t *testing.T, _ string, run func(*testing.T, setup) *service) { test(t, run) })
}

// gaps are the times between the end of one call and the begin of the next.
func gaps(calls []sight) []time.Duration {
	var all []time.Duration
	for i := 1; i < len(calls); i++ {
		all = append(all, calls[i].At.Sub(calls[i-1].Left))
	}

	return all
}

// Immediate tries come at once, within the first attempt, and are on the dead letter.
func TestImmediateTries(t *testing.T) {
	t.Parallel()
	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		var s seen
		c := setup{QueueType: "quorum", Handler: s.handler(failing(99))}
		c.Options.Policies = config.Policies{Default: config.Policy{Delays: ms(150, 250), Immediate: 2}}
		svc := run(t, c)
		svc.publish("1")

		dead := svc.Broker.Take(svc.dlq(), 1)[0]
		calls := s.of("1")
		var numbers, tries []int
		for _, c := range calls {
			numbers, tries = append(numbers, c.Attempt.Number), append(tries, c.Attempt.Try)
		}
		assert.Equal(t, []int{1, 1, 1, 2, 3}, numbers)
		assert.Equal(t, []int{1, 2, 3, 1, 1}, tries, "only before the first delayed retry")
		g := gaps(calls)
		assert.GreaterOrEqual(t, g[2], 150*time.Millisecond)
		assert.GreaterOrEqual(t, g[3], 250*time.Millisecond)

		assert.Equal(t, "5", rabbit.Text(dead, header.Attempts), "handler calls")
		assert.Len(t, historyOf(t, dead), 5)
	})
}

// RetryAfter waits in the shortest delay that is long enough, and several times where none is;
// Postpone too, without an attempt.
func TestAskedWaits(t *testing.T) {
	t.Parallel()
	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		failed := errors.New("later")
		var s seen
		c := setup{Delays: ms(1000, 100, 200), Tiers: true, Prefetch: 20}
		c.Handler = s.handler(func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			if attempt.Calls > 0 {
				return nil
			}
			switch msg.UUID {
			case "after 0":
				return retry.RetryAfter(0, failed)
			case "after 150":
				return retry.RetryAfter(150*time.Millisecond, failed)
			case "after 1080":
				return retry.RetryAfter(1080*time.Millisecond, failed)
			case "postpone 0":
				return retry.Postpone(0)
			case "postpone 150":
				return fmt.Errorf("not yet: %w", retry.Postpone(150*time.Millisecond))
			default:
				return retry.Postpone(1080 * time.Millisecond)
			}
		})
		svc := run(t, c)
		waits := map[string]struct{ least, first int }{ // in ms: how long at least, and the delay that it takes first
			"after 0": {100, 100}, "after 150": {200, 200}, "after 1080": {1080, 1000},
			"postpone 0": {100, 100}, "postpone 150": {200, 200}, "postpone 1080": {1080, 1000},
		}
		ids := keys(waits)
		svc.publish(ids...)
		await.Until(t, func() bool { return s.count() == 2*len(ids) }, "each comes back once")
		await.Stays(t, 300*time.Millisecond, func() bool { return s.count() == 2*len(ids) }, "once")

		delays := map[string][]time.Duration{}
		for _, e := range svc.Events(retry.EventRetried, retry.EventPostponed) {
			delays[e.Message.UUID] = append(delays[e.Message.UUID], e.Verdict.Delay)
		}

		for _, id := range ids {
			calls := s.of(id)
			require.Len(t, calls, 2, id)
			assert.GreaterOrEqual(t, gaps(calls)[0], time.Duration(waits[id].least)*time.Millisecond-rounding, id)
			// The delays tell the upper bound, as a busy machine may be late. What is left after
			// the first one takes the shortest, unless it was so late that nothing is left. 80 ms
			// leave room for times in whole milliseconds.
			first := time.Duration(waits[id].first) * time.Millisecond
			if waits[id].least == waits[id].first {
				assert.Equal(t, []time.Duration{first}, delays[id], id)
			} else if len(delays[id]) != 1 || delays[id][0] != first {
				assert.Equal(t, []time.Duration{first, 100 * time.Millisecond}, delays[id], id)
			}
			number := 2
			if id[0] == 'p' {
				number = 1
			}
			assert.Equal(t, number, calls[1].Attempt.Number, id)
			assert.Equal(t, 1, calls[1].Attempt.Calls, "waiting on is no call of a handler")
			if id[0] == 'p' {
				assert.Empty(t, calls[1].Attempt.History, "nothing has failed")
				assert.Empty(t, calls[1].Attempt.LastError)
			}
		}
		assert.Zero(t, svc.Broker.Depth(svc.dlq()))
	})
}

// No wait ends earlier than asked, however short the delays are; it takes as many as it takes.
func TestAskedWaitsBeyondShortDelays(t *testing.T) {
	t.Parallel()
	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		const asked = 800 * time.Millisecond
		var s seen
		svc := run(t, setup{Delays: ms(80), Prefetch: 20, Handler: s.handler(func(msg *message.Message) error {
			switch attempt, _ := retry.AttemptFromContext(msg.Context()); {
			case attempt.Calls > 0:
				return nil
			case msg.UUID == "retried":
				return retry.RetryAfter(asked, errors.New("later"))
			default:
				return retry.Postpone(asked)
			}
		})})
		svc.publish("retried", "postponed")
		await.Until(t, func() bool { return s.count() == 4 }, "each comes back once")

		for id, number := range map[string]int{"retried": 2, "postponed": 1} {
			calls := s.of(id)
			require.Len(t, calls, 2, id)
			assert.GreaterOrEqual(t, gaps(calls)[0], asked-rounding, id)
			assert.Equal(t, number, calls[1].Attempt.Number, id)
			assert.Equal(t, 1, calls[1].Attempt.Calls, "waiting on is no call of a handler")
		}
		assert.Zero(t, svc.Broker.Depth(svc.dlq()))
	})
}

// Postponing ends at the maximum age, and keeps what the message has been through.
func TestPostponedTooLong(t *testing.T) {
	t.Parallel()

	var s seen
	c := setup{Handler: s.handler(func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		if msg.UUID == "failed before" && attempt.Failures == 0 {
			return errors.New("once")
		}

		return fmt.Errorf("waiting for a friend: %w", retry.Postpone(50*time.Millisecond))
	})}
	c.Options.Policies = config.Policies{Default: config.Policy{Delays: ms(100), MaxPostpone: 600 * time.Millisecond}}
	svc := start(t, c)
	began := time.Now()
	svc.publish("1", "failed before")

	for _, dead := range svc.Broker.Take(svc.dlq(), 2) {
		assert.Less(t, time.Since(began), 30*time.Second)
		assert.Equal(t, "postponed-too-long", rabbit.Text(dead, header.Reason))
		assert.Equal(t, "waiting for a friend: postponed for 50ms", rabbit.Text(dead, header.Error))
		calls := s.of(rabbit.UUID(dead))
		assert.Greater(t, len(calls), 1)
		assert.Equal(t, strconv.Itoa(len(calls)), rabbit.Text(dead, header.Attempts))
		last := calls[len(calls)-1]
		assert.GreaterOrEqual(t, last.At.Sub(calls[0].At), 400*time.Millisecond)
		history := historyOf(t, dead)
		if rabbit.UUID(dead) == "failed before" {
			require.Len(t, history, 2)
			assert.Equal(t, 2, last.Attempt.Number)
		} else {
			require.Len(t, history, 1)
			assert.Equal(t, 1, last.Attempt.Number)
		}
	}
}

// The lists of a policy and the decision function, on what a handler never saw as well.
func TestErrorsThatPoliciesKnow(t *testing.T) {
	t.Parallel()
	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		var asked atomic.Int32
		c := setup{Prefetch: 20}
		c.Options.Policies = config.Policies{Default: config.Policy{Delays: ms(60),
			NeverRetry: []config.ErrorMatch{config.Is(errNever)}}}
		c.Options.Decide = func(f retry.Failure) error {
			switch {
			case f.Class == retry.ClassUndecodable && string(f.Payload) == "late schema" && f.Topic != "":
				asked.Add(1)
				return retry.RetryAfter(0, f.Err)
			case f.Message != nil && f.Message.UUID == "override" && f.Attempt.Number == 2:
				return retry.Drop(f.Err)
			case f.Message != nil && f.Message.UUID == "override":
				return retry.Transient(f.Err)
			}

			return nil
		}
		c.Handler = func(*message.Message) error { return fmt.Errorf("wrapped: %w", errNever) }
		c.Configure = func(conf *amqp.Config) { conf.Marshaler = pickyMarshaler{} }
		svc := run(t, c)

		svc.publish("listed", "override")
		svc.Broker.Publish(svc.Queue, rabbit.Message("undecodable", "late schema"))
		dead := reasons(svc.Broker.Take(svc.dlq(), 2))
		assert.Equal(t, map[string]string{"listed": "permanent", "undecodable": "exhausted"}, dead)
		assert.EqualValues(t, 2, asked.Load(), "retried once, as the policy allows")
		await.Until(t, func() bool {
			return len(svc.Logs.with("marked with retry.Drop")) == 1
		}, "overridden in its second attempt")
		assert.Equal(t, []int{1, 2}, svc.Calls.attempts("override"))
		assert.Zero(t, svc.Broker.Depth(svc.dlq()))
	})
}

// pickyMarshaler cannot decode one body.
type pickyMarshaler struct{ amqp.DefaultMarshaler }

func (m pickyMarshaler) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if string(d.Body) == "late schema" {
		return nil, errors.New("no such schema")
	}

	return m.DefaultMarshaler.Unmarshal(d)
}

// Jitter spreads within the delay and adds no queue. Who is behind a longer wait in the same retry
// queue comes later: never before its own time, never after the whole delay.
func TestJitter(t *testing.T) {
	t.Parallel()
	each(t, map[string]bool{"quorum": false, "classic": true}, func(t *testing.T, _ string, classic bool) {
		const delay = time.Second
		var s seen
		c := setup{Prefetch: 100, Handler: s.handler(failing(1))}
		c.Options.Concurrency = 8
		c.Options.Policies = config.Policies{Default: config.Policy{Delays: []time.Duration{delay}, Jitter: 0.8,
			ClassicQueues: classic}}
		svc := start(t, c)

		inTime := false
		for round := 0; round < 4 && !inTime; round++ { // a busy machine makes some late, which is measured again
			inTime = jitteredInTime(t, svc, &s, delay, round)
		}
		assert.True(t, inTime, "no wait is longer than the whole delay, and some are shorter: see the log")

		plan := must(svc.Retrier.Plan(svc.Queue))(t)
		assert.Len(t, plan.Queues, 2, "one retry queue, and the dead-letter queue")
	})
}

// jitteredInTime publishes a burst and then one message now and then, and tells whether they came
// back in time.
func jitteredInTime(t *testing.T, svc *service, s *seen, delay time.Duration, round int) bool {
	t.Helper()
	const n, apart = 60, 8
	burst := rabbit.Numbered(fmt.Sprintf("burst-%d", round), n)
	spread := rabbit.Numbered(fmt.Sprintf("spread-%d", round), apart)
	svc.publish(burst...)
	for i, id := range spread {
		published := time.Now()
		svc.publish(id)
		await.Until(t, func() bool {
			return time.Since(published) > 300*time.Millisecond || i == apart-1
		}, "some time passes")
	}
	await.Until(t, func() bool { return s.count() == 2*(n+apart)*(round+1) }, "all come back")

	waits := func(ids []string) []time.Duration {
		var all []time.Duration
		for _, id := range ids {
			all = append(all, gaps(s.of(id))[0])
		}
		slices.Sort(all)

		return all
	}
	together, alone := waits(burst), waits(spread)
	t.Logf("burst of %d: %s .. median %s .. %s; apart: %s .. %s", n, together[0], together[n/2], together[n-1],
		alone[0], alone[apart-1])
	assert.GreaterOrEqual(t, min(together[0], alone[0]), delay/5, "never before the shortest wait")

	// 8 waits of 200 to 1000 ms: all above 900 would be chance of 1 in 16 million, but they wait
	// behind each other.
	return max(together[n-1], alone[apart-1]) < delay*5/2 && alone[0] < delay*9/10
}

// What jitter sends along ends with the wait, and a dead letter has no expiration.
func TestJitterLeavesNoTrace(t *testing.T) {
	t.Parallel()

	var s seen
	c := setup{Handler: s.handler(failing(99))}
	c.Options.Policies = config.Policies{Default: config.Policy{Delays: ms(100), Retries: 3, Jitter: 1,
		MaxAge: time.Hour}}
	svc := start(t, c)
	p := rabbit.Message("1", "x")
	p.Expiration = strconv.Itoa(math.MaxInt32)
	svc.Broker.Publish(svc.Queue, p)

	dead := svc.Broker.Take(svc.dlq(), 1)[0]
	assert.Empty(t, dead.Expiration)
	hasHeaders(t, dead, headers{header.Expiration: p.Expiration, header.Reason: "exhausted"})
	assert.Len(t, s.of("1"), 4)
}
