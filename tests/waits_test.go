package tests

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
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
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

func bothSubscribers(t *testing.T, test func(t *testing.T, run func(*testing.T, setup) *service)) {
	t.Helper()
	each(t, map[string]func(*testing.T, setup) *service{"own": start, "stock": startStock},
		func(t *testing.T, _ string, run func(*testing.T, setup) *service) { test(t, run) })
}

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

// P2: what cannot be decoded has no handler that could be called again at once: with immediate
// tries it waits like anything else, and for as long as RetryAfter says.
func TestP2_UndecodableHasNoImmediateTries(t *testing.T) {
	t.Parallel()
	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		each(t, map[string]func(error) error{
			"transient":   retry.Transient,
			"retry after": func(err error) error { return retry.RetryAfter(600*time.Millisecond, err) },
		}, func(t *testing.T, name string, decide func(error) error) {
			var asked records[time.Time]
			c := setup{Handler: succeed}
			c.Options.Policies = config.Policies{Default: config.Policy{Delays: ms(150, 150), Immediate: 5}}
			c.Options.Decide = func(f retry.Failure) error {
				asked.put(time.Now())
				return decide(f.Err)
			}
			c.Configure = func(conf *amqp.Config) { conf.Marshaler = pickyMarshaler{} }
			svc := run(t, c)
			svc.Broker.Publish(svc.Queue, rabbit.Message("undecodable", "late schema"))
			svc.publish("healthy")
			await.Until(t, func() bool { return svc.Calls.count() == 1 }, "the healthy one behind it")
			svc.Broker.Take(svc.dlq(), 1)
			times := asked.All()
			require.Len(t, times, 3)
			if name == "retry after" {
				assert.GreaterOrEqual(t, times[1].Sub(times[0]), 600*time.Millisecond)
			}
		})
	})
}

// P2: no forged header parks a message, makes it spin, or lifts a bound.
func TestP2_ForgedAges(t *testing.T) {
	t.Parallel()

	const never = "9999-01-01T00:00:00.000Z"
	died := func(queue string) []any {
		return []any{amqp091.Table{"queue": queue + ".retry.1s", "reason": "expired", "exchange": "",
			"count": int64(1)}}
	}
	type row struct {
		forge   func(queue string) amqp091.Table
		handler func(*message.Message) error
		reason  string // of its end; handled where it has none
	}
	each(t, map[string]row{
		"not before, count 0": {func(string) amqp091.Table {
			return amqp091.Table{header.Count: "0", header.NotBefore: never}
		}, succeed, ""},
		"not before, count 7": {func(string) amqp091.Table {
			return amqp091.Table{header.Count: "7", header.NotBefore: never}
		}, succeed, ""},
		"not before, any count": {func(string) amqp091.Table {
			return amqp091.Table{header.Count: "x", header.NotBefore: never}
		}, succeed, ""},
		"not before, with a death": {func(q string) amqp091.Table {
			return amqp091.Table{header.Count: "1", header.Delay: "1s", header.NotBefore: never, "x-death": died(q)}
		}, succeed, ""},
		"everything, with a death": {func(q string) amqp091.Table {
			return amqp091.Table{header.Count: "1", header.Delay: "1s", header.NotBefore: never, header.Since: never,
				header.LastFailure: never, "x-death": died(q)}
		}, succeed, ""},
		"since, for ever young": {func(q string) amqp091.Table {
			return amqp091.Table{header.Count: "0", header.Delay: "1s", header.Since: never, "x-death": died(q)}
		}, func(*message.Message) error { return retry.Postpone(0) }, "postponed-too-long"},
		"deadline of the past": {func(string) amqp091.Table {
			return amqp091.Table{header.Count: "0", header.Deadline: "1999-01-01T00:00:00.000Z"}
		}, succeed, ""},
	}, func(t *testing.T, _ string, test row) {
		c := setup{Handler: test.handler}
		// One delay, as long as all waits may be together: with a shorter one a slow machine
		// fits in more of them.
		c.Options.Policies = config.Policies{Default: config.Policy{Delays: ms(1000), MaxPostpone: time.Second}}
		svc := start(t, c)
		p := rabbit.Message("1", "x")
		for key, value := range test.forge(svc.Queue) {
			p.Headers[key] = value
		}
		p.Headers[header.Version], p.Headers[header.Queue] = header.FormatVersion, svc.Queue
		svc.Broker.Publish(svc.Queue, p)

		if test.reason != "" {
			dead := svc.Broker.Take(svc.dlq(), 1)[0]
			assert.Equal(t, test.reason, rabbit.Text(dead, header.Reason))

			return
		}
		await.Until(t, func() bool { return svc.Calls.count() == 1 }, "handled")
		assert.LessOrEqual(t, len(svc.Logs.with("Message is not due yet")), 2)
	})
}

// P10: what expires while it waits in the prefetch, behind a slow handler, is not handled any more.
func TestP10_ExpiredInThePrefetch(t *testing.T) {
	t.Parallel()

	release := make(chan struct{})
	entered := make(chan struct{}, 1)
	svc := start(t, setup{Prefetch: 10, Handler: func(msg *message.Message) error {
		if msg.UUID == "slow" {
			entered <- struct{}{}
			<-release
		}

		return nil
	}})
	svc.publish("slow")
	await.Closed(t, entered, "the slow one is in its handler")

	messages := rabbit.Messages("stamped", "bare", "patient")
	messages[0].Timestamp = time.Now()
	messages[0].Expiration, messages[1].Expiration, messages[2].Expiration = "4000", "4000", "60000"
	svc.Broker.Publish(svc.Queue, messages...)
	published := time.Now()
	await.Until(t, func() bool { return svc.Broker.Depth(svc.Queue) == 0 }, "delivered ahead")
	await.Until(t, func() bool { return time.Since(published) > 5200*time.Millisecond }, "they expire")
	close(release)

	dead := reasons(svc.Broker.Take(svc.dlq(), 2))
	assert.Equal(t, map[string]string{"stamped": "expired", "bare": "expired"}, dead)
	assert.Empty(t, svc.Calls.of("stamped"))
	assert.Empty(t, svc.Calls.of("bare"))
	await.Until(t, func() bool { return len(svc.Calls.of("patient")) == 1 }, "the one with time left")
}

// A handler on the stock subscriber that nacks by itself has given the message back: with a copy
// there would be two.
func TestStock_HandlerThatNacksByItself(t *testing.T) {
	t.Parallel()

	var calls atomic.Int32
	svc := startStock(t, setup{QueueType: "quorum", Handler: func(msg *message.Message) error {
		if calls.Add(1) > 5 {
			return nil
		}
		msg.Nack()

		return errors.New("and fails")
	}})
	svc.publish("1")
	await.Until(t, func() bool { return calls.Load() == 6 }, "plain nacks, as Watermill's")
	await.Stays(t, 500*time.Millisecond, func() bool {
		return calls.Load() == 6 && svc.Broker.Depth(svc.dlq()) == 0
	}, "one message")
}

// P9: what goes back to its queue is logged by the router, with the text that ErrorText gives.
func TestP9_RedactionReachesTheRouter(t *testing.T) {
	t.Parallel()

	entered := make(chan struct{}, 1)
	c := setup{Handler: func(msg *message.Message) error {
		entered <- struct{}{}
		<-msg.Context().Done()

		return errors.New("card 4111")
	}}
	c.Options.CloseTimeout = 300 * time.Millisecond
	c.Options.ErrorText = func(error) string { return "redacted" }
	svc := start(t, c)
	svc.publish("1")
	await.Closed(t, entered, "it is in its handler")
	svc.close()

	told := false
	for _, e := range svc.Logs.All() {
		assert.NotContains(t, e.String(), "4111")
		told = told || e.Err != nil && strings.Contains(e.Err.Error(), "redacted")
	}
	assert.True(t, told, "the router has logged it")
}

// Poison alone narrows the policy of its handler, for everybody who asks.
func TestP9_PoisonNarrowsThePolicy(t *testing.T) {
	t.Parallel()

	var s seen
	var asked atomic.Pointer[retry.Attempt]
	c := setup{URI: brokertest.URI(t)}
	c.Options.Policies = config.Policies{Default: config.Policy{Delays: ms(50, 100), Immediate: 1}}
	c.Options.Decide = func(f retry.Failure) error {
		asked.Store(&f.Attempt)
		return nil
	}
	c.Route = func(svc *service) {
		h := s.handler(func(msg *message.Message) error {
			if msg.UUID == "unpublishable" {
				return nil
			}

			return errFate
		})
		handler := svc.Router.AddHandler(uniqueName("handler"), svc.Queue, svc.Sub, "nowhere", refusing{},
			func(msg *message.Message) ([]*message.Message, error) {
				return message.Messages{message.NewMessage("output", nil)}, h(msg)
			})
		handler.AddMiddleware(svc.Retrier.Poison)
	}
	svc := start(t, c)

	for _, id := range []string{"failing", "unpublishable"} {
		svc.publish(id)
		svc.Broker.Take(svc.dlq(), 1)
		require.Len(t, s.of(id), 1)
		assert.True(t, s.of(id)[0].Attempt.Last)
		assert.Zero(t, s.of(id)[0].Attempt.MaxRetries)
		assert.True(t, asked.Load().Last)
	}
}

// expiring is a policy whose retries would go on for 4 s, in steps of 200 ms.
func expiring(change func(*config.Policy)) config.Policies {
	p := config.Policy{Delays: ms(200), Retries: 20}
	change(&p)

	return config.Policies{Default: p}
}

// P10: a deadline, by the policy or by the message itself, holds across retries, from the timestamp
// or the first delivery.
func TestP10_Deadline(t *testing.T) {
	t.Parallel()

	aged := func(p amqp091.Publishing, age time.Duration) amqp091.Publishing {
		p.Timestamp = time.Now().Add(-age)
		return p
	}
	expires := func(p amqp091.Publishing, after string) amqp091.Publishing {
		p.Expiration = after
		return p
	}

	type row struct {
		policy config.Policies
		msg    func() amqp091.Publishing
		lasts  time.Duration // how long it is tried
		calls  int           // how often, at most: a busy machine makes it fewer
	}
	each(t, map[string]row{
		"max age": {
			expiring(func(p *config.Policy) { p.MaxAge = 700 * time.Millisecond }),
			func() amqp091.Publishing { return rabbit.Message("1", "x") }, 700 * time.Millisecond, 4,
		},
		"expiration": {
			expiring(func(*config.Policy) {}),
			func() amqp091.Publishing { return expires(rabbit.Message("1", "x"), "700") }, 700 * time.Millisecond, 4,
		},
		"the earlier of both": {
			expiring(func(p *config.Policy) { p.MaxAge = time.Hour }),
			func() amqp091.Publishing { return expires(rabbit.Message("1", "x"), "500") }, 500 * time.Millisecond, 3,
		},
		"max age, from the timestamp": {
			expiring(func(p *config.Policy) { p.MaxAge = 62200 * time.Millisecond }),
			func() amqp091.Publishing {
				return aged(rabbit.Message("1", "x"), time.Minute)
			}, 3200 * time.Millisecond, 16,
		},
		"a timestamp of the future": {
			expiring(func(p *config.Policy) { p.MaxAge = 500 * time.Millisecond }),
			func() amqp091.Publishing { return aged(rabbit.Message("1", "x"), -time.Hour) }, 500 * time.Millisecond, 3,
		},
		"a timestamp that the expiration contradicts": {
			expiring(func(*config.Policy) {}),
			func() amqp091.Publishing {
				return expires(aged(rabbit.Message("1", "x"), time.Hour), "500")
			}, 500 * time.Millisecond, 3,
		},
		"too old before its first handler": {
			expiring(func(p *config.Policy) { p.MaxAge = time.Minute }),
			func() amqp091.Publishing { return aged(rabbit.Message("1", "x"), time.Hour) }, 0, 0,
		},
	}, func(t *testing.T, _ string, test row) {
		var s seen
		c := setup{Handler: s.handler(failing(99))}
		c.Options.Policies = test.policy
		svc := start(t, c)
		published := time.Now()
		svc.Broker.Publish(svc.Queue, test.msg())

		dead := svc.Broker.Take(svc.dlq(), 1)[0]
		calls := s.of("1")
		require.LessOrEqual(t, len(calls), test.calls)
		require.Equal(t, test.calls == 0, len(calls) == 0)
		assert.Equal(t, "expired", rabbit.Text(dead, header.Reason))
		history := historyOf(t, dead)
		if len(calls) == 0 {
			assert.Contains(t, rabbit.Text(dead, header.Error), "before its handler was called")
			assert.Equal(t, "0", rabbit.Text(dead, header.Attempts))
			require.Len(t, history, 1)

			return
		}
		assert.Contains(t, rabbit.Text(dead, header.Error), "failure", "what it failed of before it expired")
		deadline := must(time.Parse(time.RFC3339, rabbit.Text(dead, header.Deadline)))(t)
		// The timestamp has whole seconds, so a deadline by it may be up to a second late;
		// never early.
		assert.WithinRange(t, deadline, published.Add(test.lasts-1010*time.Millisecond),
			calls[0].At.Add(test.lasts+50*time.Millisecond))
		for _, c := range calls {
			assert.True(t, c.At.Before(deadline.Add(20*time.Millisecond)), "no handler is called after it")
			assert.Equal(t, deadline, c.Attempt.Deadline.UTC().Truncate(time.Millisecond))
		}
		last := must(time.Parse(time.RFC3339, rabbit.Text(dead, header.LastFailure)))(t)
		if n := len(history); history[n-1].Reason == "expired" { // it came back late, and was not handled any more
			assert.False(t, last.Before(deadline))
			assert.False(t, history[n-2].At.Add(200*time.Millisecond).After(deadline.Add(time.Millisecond)),
				"no wait begins that would outlive the deadline")
			return
		}
		// It was found out when the next wait would have outlived it. On a busy machine the
		// last call, which began before the deadline, may have failed after it.
		assert.True(t, last.Add(200*time.Millisecond).After(deadline.Add(-time.Millisecond)))
	})
}

// P10: what has expired can be dropped instead; and it may expire while it waits behind others.
func TestP10_DroppedOrFoundOutLate(t *testing.T) {
	t.Parallel()

	t.Run("dropped", func(t *testing.T) {
		t.Parallel()

		var s seen
		c := setup{Handler: s.handler(failing(99))}
		c.Options.Policies = expiring(func(p *config.Policy) {
			p.MaxAge, p.OnExpiry = 300*time.Millisecond, config.ExpiryDrop
		})
		svc := start(t, c)
		svc.publish("1")

		await.Until(t, func() bool { return len(svc.Logs.with("Message has expired")) == 1 }, "dropped")
		calls := s.count()
		assert.LessOrEqual(t, calls, 2)
		await.Stays(t, 500*time.Millisecond, func() bool {
			return svc.Broker.Depth(svc.dlq()) == 0 && s.count() == calls
		}, "it is gone")
		assert.Zero(t, svc.Broker.Depth(svc.Queue))
		assert.Empty(t, svc.Letters())
	})

	t.Run("behind others", func(t *testing.T) {
		t.Parallel()

		release := make(chan struct{})
		var s seen
		c := setup{Handler: s.handler(func(msg *message.Message) error {
			if msg.UUID == "slow" {
				<-release
			}

			return nil
		})}
		c.Options.Policies = expiring(func(p *config.Policy) { p.MaxAge = 300 * time.Millisecond })
		svc := start(t, c)
		late := rabbit.Message("late", "x")
		late.Timestamp = time.Now()
		svc.Broker.Publish(svc.Queue, rabbit.Message("slow", "x"), late)
		await.Until(t, func() bool {
			return time.Since(late.Timestamp) > 1500*time.Millisecond
		}, "it has become too old")
		close(release)

		dead := svc.Broker.Take(svc.dlq(), 1)[0]
		assert.Equal(t, "late", rabbit.UUID(dead))
		assert.Equal(t, "expired", rabbit.Text(dead, header.Reason))
		assert.Empty(t, s.of("late"), "its handler was not called")
		letters := svc.toldLetters(1)
		assert.Equal(t, retry.ReasonExpired, letters[0].Verdict.Reason)
		assert.Equal(t, "late", letters[0].Message.UUID)
	})
}

// P10: who replays a message wants it handled: its deadlines are those of a new life, and its own
// expiration is over.
func TestP10_ReplayBeginsAnew(t *testing.T) {
	t.Parallel()

	var s seen
	c := setup{Handler: s.handler(failing(99))}
	c.Options.Policies = expiring(func(p *config.Policy) { p.MaxAge, p.Retries = 3*time.Second, 1 })
	svc := start(t, c)
	first := rabbit.Message("1", "x")
	first.Expiration, first.Timestamp = "300", time.Now()
	svc.Broker.Publish(svc.Queue, first)
	dead := svc.Broker.Take(svc.dlq(), 1)[0]
	require.NotEmpty(t, rabbit.Text(dead, header.Deadline))

	await.Until(t, func() bool {
		return time.Since(first.Timestamp) > 4500*time.Millisecond
	}, "all its deadlines are over")
	// A new life may expire as well, when the machine stands still for its 3 s. Then the next
	// replay counts.
	for again := 0; ; again++ {
		before := s.count()
		svc.Broker.Publish(svc.Queue,
			amqp091.Publishing{Headers: dead.Headers, Timestamp: dead.Timestamp, Body: dead.Body})
		dead = svc.Broker.Take(svc.dlq(), 1)[0]
		if again < 2 && rabbit.Text(dead, header.Reason) == "expired" {
			continue
		}
		assert.Equal(t, "exhausted", rabbit.Text(dead, header.Reason))
		assert.Equal(t, before+2, s.count(), "handled, and retried")

		return
	}
}
