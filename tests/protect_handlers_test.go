package tests

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/rabbitmq/amqp091-go"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
	"github.com/amqpretry/watermill-retry/retry"
)

func guarded(h func(*message.Message) error, middle ...message.HandlerMiddleware) func(*service) {
	return func(s *service) {
		s.Router.AddMiddleware(middle...)
		s.Router.AddConsumerHandler(uniqueName("handler"), s.Queue, s.Sub, s.recorded(h))
	}
}

// While the breaker is open, messages wait and use no attempt up; when what the handler depends on
// is back, all are handled.
func TestCircuitBreakerPostpones(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	down.Store(true)
	breaker := must(protect.NewCircuitBreaker(protect.CircuitBreakerConfig{Settings: gobreaker.Settings{
		Timeout:     2 * time.Second, // on a slow machine, too, there are few probes until all have met it
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 2 },
	}, Postpone: 300 * time.Millisecond}))(t)

	var outcomes sync.Map // id -> attempts that ended without a call of the handler
	watch := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if errors.Is(err, retry.ErrPostponed) {
				a, _ := retry.AttemptFromContext(msg.Context())
				outcomes.Store(msg.UUID, a.Number)
			}

			return produced, err
		}
	}
	svc := start(t, setup{Tiers: true,
		QueueType: "quorum", Options: amqpretry.Options{Policies: config.Policies{
			Default: config.Policy{Retries: 9, Delays: ms(300)},
		}},
		Route: guarded(func(*message.Message) error {
			if down.Load() {
				return errFate
			}

			return nil
		}, watch, breaker.Middleware),
	})
	svc.publish("first", "second") // these open it
	await.Until(t, func() bool { return svc.Calls.count() == 2 }, "both have failed")
	late := rabbit.Numbered("late", 10)
	svc.publish(late...)

	postponed := func() (n int) {
		outcomes.Range(func(any, any) bool { n++; return true })
		return n
	}
	await.Until(t, func() bool { return postponed() >= 9 }, "all that are not used for probing")
	down.Store(false)
	await.Until(t, func() bool {
		done := map[string]bool{}
		for _, c := range svc.Calls.All() {
			done[c.ID] = true
		}

		return len(done) == 12 && svc.Broker.Depth(svc.retryQueue(300*time.Millisecond)) == 0
	}, "all are handled")
	svc.close()

	untouched := 0
	for _, id := range late {
		if attempts := svc.Calls.attempts(id); len(attempts) == 1 {
			assert.Equal(t, []int{1}, attempts, "%s was postponed and not tried: its first call is attempt 1", id)
			untouched++
		}
	}
	assert.GreaterOrEqual(t, untouched, 5, "probes are a few")
	assert.Zero(t, svc.Broker.Depth(svc.dlq()))
	assert.Zero(t, svc.Broker.Depth(svc.Queue))
}

// The rate is kept over postponed messages too, nothing is counted as a failure, and each is
// handled once.
func TestRateLimitPostpones(t *testing.T) {
	t.Parallel()
	const n, limit, burst = 30, 20, 2
	throttle := must(protect.NewRateLimit(protect.RateLimitConfig{Limit: limit, Burst: burst,
		MaxWait: 60 * time.Millisecond}))(t)
	type span struct{ from, to time.Time }
	var had records[span] // of the messages that had their turn: it was between these times
	watch := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			from := time.Now()
			produced, err := h(msg)
			if err == nil {
				had.put(span{from, time.Now()})
			}

			return produced, err
		}
	}
	svc := start(t, setup{
		QueueType: "quorum", Prefetch: n,
		Options: amqpretry.Options{Concurrency: 8, Policies: retries(ms(200, 1000)...)},
		Route:   guarded(succeed, watch, throttle.Middleware),
	})
	ids := rabbit.Numbered("m", n)
	svc.publish(ids...)
	await.Until(t, func() bool { return svc.Calls.count() >= n }, "all are handled")
	await.Stays(t, 500*time.Millisecond, func() bool { return svc.Calls.count() == n }, "once")

	for _, call := range svc.Calls.All() {
		assert.Equal(t, 1, call.Attempt)
	}
	assert.Zero(t, svc.Broker.Depth(svc.dlq()))
	svc.close()
	turns := had.All()
	require.Len(t, turns, n)
	// A call is late on a busy machine, so what was certainly between two times is counted. It is
	// at most the burst, and what the rate gives in that time.
	for _, first := range turns {
		for _, last := range turns {
			within := 0
			for _, turn := range turns {
				if !turn.from.Before(first.from) && !turn.to.After(last.to) {
					within++
				}
			}
			if within <= burst {
				continue
			}
			least := time.Duration(float64(within-burst) / limit * float64(time.Second))
			assert.GreaterOrEqual(t, last.to.Sub(first.from)+time.Millisecond, least, "%d calls", within)
		}
	}
}

// A shutdown ends the wait for a turn: the message goes back as it was, and is no failure.
func TestRateLimitAndClose(t *testing.T) {
	t.Parallel()
	limit := must(protect.NewRateLimit(protect.RateLimitConfig{Limit: rate.Every(time.Hour), Burst: 1,
		MaxWait: 2 * time.Hour}))(t)
	svc := start(t, setup{
		QueueType: "quorum", Options: amqpretry.Options{CloseTimeout: 500 * time.Millisecond},
		Route: guarded(succeed, limit.Middleware),
	})
	svc.publish("first", "waiting")
	await.Until(t, func() bool { return svc.Calls.count() == 1 }, "the first is handled")
	// The default is 10 s; with the message it would take the router's 20 s, which is an error.
	assert.Less(t, svc.close(), 9*time.Second)

	left := svc.Broker.Take(svc.Queue, 1)[0]
	assert.Equal(t, "waiting", rabbit.UUID(left))
	assert.Empty(t, rabbit.Text(left, header.Count), "uncounted")
}

var hasher = wmmiddleware.NewMessageHasherSHA256(math.MaxInt64)

func stockByAttempt() message.HandlerMiddleware {
	return protect.ByAttempt(wmmiddleware.Deduplicator{KeyFactory: hasher, Timeout: time.Minute})
}

func deduplicator(t *testing.T) message.HandlerMiddleware {
	t.Helper()
	d, err := protect.NewDeduplicator(protect.DeduplicatorConfig{KeyFactory: hasher, Postpone: 100 * time.Millisecond})
	require.NoError(t, err)

	return d.Middleware
}

// withInbox is a deduplicator that keeps what was handled outside of itself, under the messages'
// UUIDs.
func withInbox(t *testing.T, inbox store.Inbox) *protect.Deduplicator {
	t.Helper()
	d := must(protect.NewDeduplicator(protect.DeduplicatorConfig{
		Inbox: inbox, Postpone: 100 * time.Millisecond, OnError: func(err error) { assert.NoError(t, err) },
	}))(t)

	return d
}

func memory(t *testing.T) store.Inbox {
	t.Helper()
	m := must(store.NewMemory(store.MemoryConfig{}))(t)

	return m
}

// Inside of the retry middleware, with keys that tell attempts apart or with ours: duplicates are
// dropped, and what comes again for a reason is handled.
func TestDeduplicatorsThatRetry(t *testing.T) {
	t.Parallel()
	each(t, map[string]func() message.HandlerMiddleware{
		"Watermill's, by attempt": stockByAttempt,
		"ours":                    func() message.HandlerMiddleware { return deduplicator(t) },
		"ours, with an inbox":     func() message.HandlerMiddleware { return withInbox(t, memory(t)).Middleware },
	}, func(t *testing.T, _ string, middle func() message.HandlerMiddleware) {
		bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
			var s seen
			fixed := atomic.Bool{}
			h := middle()(func(msg *message.Message) ([]*message.Message, error) {
				return nil, s.handler(func(msg *message.Message) error {
					a, _ := retry.AttemptFromContext(msg.Context())
					switch {
					case msg.UUID == "retried" && a.Number < 3, msg.UUID == "immediate" && a.Try == 1:
						return errFate
					case msg.UUID == "postponed" && a.Calls < 2:
						return retry.Postpone(time.Millisecond)
					case msg.UUID == "replayed" && !fixed.Load():
						return retry.Permanent(errFate)
					}

					return nil
				})(msg)
			})
			svc := run(t, setup{
				QueueType: "quorum", Options: amqpretry.Options{Policies: config.Policies{
					Default: config.Policy{Delays: ms(100, 100), Immediate: 1},
				}},
				Handler: func(msg *message.Message) error {
					_, err := h(msg)
					return err
				},
			})
			svc.publish("twice", "retried", "immediate", "postponed", "replayed")
			letter := svc.Broker.Take(svc.dlq(), 1)[0]
			fixed.Store(true)
			svc.Broker.Publish(svc.Queue, republished(letter))
			calls := map[string]int{"twice": 1, "retried": 4, "immediate": 2, "postponed": 3, "replayed": 2}
			all := func() bool {
				for id, n := range calls {
					if len(s.of(id)) != n {
						return false
					}
				}

				return true
			}
			await.Until(t, all, "each is handled as often as it has to be")

			again := rabbit.Messages("twice", "twice")
			again[1].Headers["other"] = "a duplicate with a header of its own"
			svc.Broker.Publish(svc.Queue, again...)
			await.Until(t, func() bool { return svc.Broker.Depth(svc.Queue) == 0 }, "they are consumed")
			await.Stays(t, 500*time.Millisecond, all, "and dropped")
			svc.close()
			assert.Zero(t, svc.Broker.Depth(svc.Queue))
			assert.Zero(t, svc.Broker.Depth(svc.dlq()))
		})
	})
}

func republished(d amqp091.Delivery) amqp091.Publishing {
	return amqp091.Publishing{Headers: d.Headers, DeliveryMode: d.DeliveryMode, Body: d.Body}
}

// A message whose connection is lost while its handler runs comes again. Watermill's Deduplicator
// loses it then, also with keys by attempt. Ours handles it, if it has to.
func TestDeduplicatorAndLostConnection(t *testing.T) {
	t.Parallel()
	uri := brokertest.URI(t)

	type row struct {
		middle message.HandlerMiddleware
		lasts  bool  // the handler does not notice that its message was taken away
		err    error // and ends with this
		calls  int
	}
	each(t, map[string]row{
		"Watermill's, by attempt":             {middle: stockByAttempt(), err: context.Canceled, calls: 1},
		"ours":                                {middle: deduplicator(t), err: context.Canceled, calls: 2},
		"ours, and the first call fails late": {middle: deduplicator(t), lasts: true, err: errFate, calls: 2},
		"ours, and the first call succeeds":   {middle: deduplicator(t), lasts: true, calls: 1},
		"an inbox": {
			middle: withInbox(t, memory(t)).Middleware, err: context.Canceled, calls: 2,
		},
		"an inbox, and the first call succeeds": {middle: withInbox(t, memory(t)).Middleware, lasts: true, calls: 1},
	}, func(t *testing.T, _ string, test row) {
		proxy := newProxy(t, uri)
		release, calls, arrivals := make(chan struct{}), atomic.Int32{}, atomic.Int32{}
		svc := start(t, setup{Tiers: true,
			URI: proxy.URI, QueueType: "quorum", Options: amqpretry.Options{Policies: retries(ms(100, 100)...),
				Concurrency: 2},
			Route: guarded(func(msg *message.Message) error {
				if calls.Add(1) > 1 {
					return nil
				}
				if test.lasts {
					<-release
				} else {
					<-msg.Context().Done()
				}

				return test.err
			}, func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					arrivals.Add(1)
					return h(msg)
				}
			}, test.middle),
		})
		svc.publish("cut")
		await.Until(t, func() bool { return calls.Load() == 1 }, "its handler runs")
		require.Positive(t, proxy.cut(subscriber))
		await.Until(t, func() bool { return arrivals.Load() >= 2 }, "it is delivered again")
		if test.lasts {
			assert.EqualValues(t, 1, calls.Load(), "not two at a time")
			close(release)
		}
		await.Until(t, func() bool { return int(calls.Load()) == test.calls }, "%d calls", test.calls)
		await.Stays(t, 600*time.Millisecond, func() bool { return int(calls.Load()) == test.calls }, "and no more")
		svc.close()
		for _, queue := range []string{svc.Queue, svc.dlq(), svc.retryQueue(100 * time.Millisecond)} {
			assert.Zero(t, svc.Broker.Depth(queue), queue)
		}
	})
}

// A handler that succeeds, and whose outputs cannot be published, has to be called again.
func TestDeduplicatorAndUnpublishableOutputs(t *testing.T) {
	t.Parallel()
	published := &flakyPublisher{failures: 2}
	svc := start(t, setup{
		QueueType: "quorum", Delays: ms(100, 100),
		Route: func(s *service) {
			s.Router.AddMiddleware(deduplicator(t))
			s.Router.AddHandler("outputs", s.Queue, s.Sub, "out", published,
				func(msg *message.Message) ([]*message.Message, error) {
					s.Calls.add(msg)
					return []*message.Message{msg.Copy()}, nil
				})
		},
	})
	svc.publish("order")
	await.Until(t, func() bool { return published.count() == 1 }, "they are published in the end")
	assert.Equal(t, []int{1, 2, 3}, svc.Calls.attempts("order"))
	svc.publish("order")
	await.Stays(t, 500*time.Millisecond, func() bool { return published.count() == 1 }, "and once")
}

type flakyPublisher struct {
	mu                  sync.Mutex
	failures, published int
}

func (p *flakyPublisher) Publish(string, ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failures > 0 {
		p.failures--
		return fmt.Errorf("not now, %d more", p.failures)
	}
	p.published++

	return nil
}

func (p *flakyPublisher) Close() error { return nil }

func (p *flakyPublisher) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.published
}

// Two instances get each message several times, in any order, and all first calls fail. Each
// message has one effect.
func TestInboxOfTwoInstances(t *testing.T) {
	t.Parallel()
	const messages, copies = 20, 3
	inbox := memory(t)
	var mu sync.Mutex
	failed, effects := map[string]bool{}, map[string]int{}
	total := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range effects {
			n += e
		}

		return n
	}
	h := func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if !failed[msg.UUID] {
			failed[msg.UUID] = true

			return errFate
		}
		effects[msg.UUID]++

		return nil
	}
	handlerName := uniqueName("handler")
	route := func(s *service) {
		d := withInbox(t, inbox)
		s.Router.AddMiddleware(d.Middleware)
		s.Router.AddConsumerHandler(handlerName, s.Queue, s.Sub, s.recorded(h))
	}
	options := amqpretry.Options{Policies: retries(ms(100, 100, 100)...), Concurrency: 4}
	first := start(t, setup{Options: options, Route: route})
	second := start(t, setup{Options: options, Route: route, Queue: first.Queue})
	for range copies {
		for m := range messages {
			first.publish(fmt.Sprint("order-", m))
		}
	}
	await.Until(t, func() bool { return total() >= messages }, "each has an effect")
	await.Stays(t, 600*time.Millisecond, func() bool { return total() == messages }, "and one only")
	first.close()
	second.close()
	assert.Zero(t, first.Broker.Depth(first.Queue))
	assert.Zero(t, first.Broker.Depth(first.dlq()))
	for id, n := range effects {
		assert.Equal(t, 1, n, id)
	}
}

// A burst comes through at about the rate under the default delays, ten times faster as the rate
// is: in 1.2 s, and not in 6.5 s as if each message waited in the one delay that is long enough.
func TestRateLimitKeepsItsRate(t *testing.T) {
	t.Parallel()
	var all []time.Duration
	for range 4 {
		took := rateLimitedBurst(t)
		if took < 4*time.Second {
			return
		}
		all = append(all, took)
	}
	assert.Fail(t, "a burst takes too long", "%s", all)
}

func rateLimitedBurst(t *testing.T) time.Duration {
	t.Helper()
	const n, perSecond = 40, 40
	limit := must(protect.NewRateLimit(protect.RateLimitConfig{Limit: perSecond, Burst: 1,
		MaxWait: time.Second / 10}))(t)
	policy := config.Default()
	for i := range policy.Delays {
		policy.Delays[i] /= 10
	}
	var s seen
	svc := start(t, setup{
		QueueType: "quorum", Prefetch: 50,
		Options: amqpretry.Options{Concurrency: 8, Policies: config.Policies{Default: policy}},
		Route:   guarded(s.handler(succeed), limit.Middleware),
	})
	began := time.Now()
	svc.publish(rabbit.Numbered("m", n)...)
	await.Until(t, func() bool { return s.count() == n }, "all are handled")
	took := time.Since(began)

	assert.GreaterOrEqual(t, took, (n-1)*time.Second/perSecond*9/10)
	assert.Zero(t, svc.Broker.Depth(svc.dlq()))
	svc.close()

	return took
}
