package tests

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// No hot loop: whatever comes in and whatever breaks, the number of handler calls and deliveries is
// known beforehand.

// oneRetry is the policy of these tests: two attempts, half a second at the most.
var oneRetry = retries(ms(200)...)

// choosy is a user's marshaler that rejects or panics, and counts how often it is asked.
type choosy struct {
	amqp.DefaultMarshaler
	asked *atomic.Int32
}

func (p choosy) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	p.asked.Add(1)
	switch {
	case strings.HasPrefix(string(d.Body), "rejected"):
		return nil, errors.New("not in our format")
	case strings.HasPrefix(string(d.Body), "panics"):
		panic("marshaler bug")
	case strings.HasPrefix(string(d.Body), "nothing"):
		return nil, nil // what a careless marshaler does
	}

	return p.DefaultMarshaler.Unmarshal(d)
}

func TestNoHotLoopUndecodable(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	svc := start(t, setup{
		Configure: func(c *amqp.Config) { c.Marshaler = choosy{asked: &asked} },
		Handler:   succeed,
	})
	ids := []string{"rejected-1", "panics-1", "nothing-1", "rejected-2", "fine", "panics-2"}
	svc.publish(ids...)

	letters := svc.Broker.Take(svc.dlq(), 5)
	for id, reason := range reasons(letters) {
		assert.Equal(t, string(retry.ReasonUndecodable), reason, id)
	}
	for _, d := range letters {
		assert.Equal(t, rabbit.UUID(d), string(d.Body), "as it came")
		assert.NotEmpty(t, rabbit.Text(d, header.Error))
	}
	await.Stays(t, 500*time.Millisecond, func() bool { return asked.Load() == 6 }, "something is decoded again")
	assert.Equal(t, map[string]int{"fine": 1}, svc.Calls.ids())
}

// Headers of every type, and headers that look like the broker's or ours, mean nothing to the
// count.
func TestNoHotLoopForeignHeaders(t *testing.T) {
	t.Parallel()
	eachQueueType(t, func(t *testing.T, queueType string) {
		svc := start(t, setup{QueueType: queueType, Handler: alwaysFails})
		death := func(queue any, count int64) amqp091.Table {
			return amqp091.Table{"queue": queue, "reason": "expired", "count": count, "exchange": "x",
				"routing-keys": []any{"k"}}
		}
		forged := map[string]amqp091.Table{
			"types": {
				"int8": int8(-1), "int16": int16(2), "int32": int32(math.MinInt32), "int64": int64(math.MaxInt64),
				"uint8":   uint8(7),
				"float32": float32(1.5), "float64": -2.5e300, "bool": true, "bytes": []byte{0xff, 0}, "nil": nil,
				"time": time.Now(), "decimal": amqp091.Decimal{Scale: 2, Value: 314}, "array": []any{int32(1), "x"},
				"table":   amqp091.Table{"nested": amqp091.Table{"deep": []any{amqp091.Table{}}}},
				"invalid": "\xff\xfe", "": "empty key",
			},
			"x-death a string":  {"x-death": "yesterday"},
			"x-death a number":  {"x-death": int64(99)},
			"x-death nested":    {"x-death": []any{[]any{death("q", 1)}, "x", death(int64(7), -5)}},
			"x-death of others": {"x-death": []any{death(svc.Queue, 1<<40), death(svc.Queue+".retry.200ms", 99)}},
			"a death of ours":   {"x-death": []any{death(svc.Queue+".retry.200ms", 99)}},
			"broker's counters": {"x-acquired-count": "many", "x-first-death-queue": svc.Queue,
				"x-last-death-reason": int64(1)},
			"ours, of another queue": {
				header.Version: "1", header.Queue: "other", header.Count: "1", header.Delay: "200ms",
				header.Attempts: "1000",
			},
			"ours, without a death": {
				header.Version: "1", header.Queue: svc.Queue, header.Count: "1", header.Delay: "200ms",
				header.Attempts: "1",
			},
			"ours, a table": {header.Version: "1", header.Queue: svc.Queue,
				header.Count: amqp091.Table{"n": int64(1)}},
			"ours, negative": {header.Version: "1", header.Queue: svc.Queue, header.Count: "-7",
				header.Delay: "forever"},
			"ours, no version": {header.Queue: svc.Queue, header.Count: "1"},
			"ours, version 99": {header.Version: "99", header.Queue: svc.Queue, header.Count: "1"},
		}
		for id, headers := range forged {
			p := rabbit.Message(id, id)
			for key, value := range headers {
				p.Headers[key] = value
			}
			svc.Broker.Publish(svc.Queue, p)
		}

		letters := reasons(svc.Broker.Take(svc.dlq(), len(forged)))
		assert.Len(t, letters, len(forged))
		for id := range forged {
			assert.Equal(t, []int{1, 2}, svc.Calls.attempts(id), "attempts of %q", id)
			assert.Equal(t, string(retry.ReasonExhausted), letters[id], id)
		}
		await.Stays(t, 500*time.Millisecond, func() bool {
			return svc.Calls.count() == 2*len(forged)
		}, "more handler calls")
	})
}

func TestNoHotLoopPanicAndGoexit(t *testing.T) {
	t.Parallel()
	svc := start(t, setup{
		Handler: func(msg *message.Message) error {
			switch msg.UUID {
			case "panic":
				panic("handler bug")
			case "panic nil":
				panic(nil) //nolint:govet // what a handler may do
			case "panic error":
				panic(errFate)
			case "goexit":
				runtime.Goexit()
			}

			return nil
		},
	})
	svc.publish("panic", "panic nil", "panic error", "goexit", "fine")

	assert.Equal(t, map[string]string{
		"panic": "panic", "panic nil": "panic", "panic error": "panic", "goexit": "exhausted",
	}, reasons(svc.Broker.Take(svc.dlq(), 4)))
	await.Stays(t, 500*time.Millisecond, func() bool { return svc.Calls.count() == 9 }, "more handler calls")
	for _, id := range []string{"panic", "panic nil", "panic error", "goexit"} {
		assert.Equal(t, []int{1, 2}, svc.Calls.attempts(id), id)
	}
}

type brokenPublisher struct{ asked *atomic.Int32 }

func (p brokenPublisher) Publish(string, ...*message.Message) error {
	p.asked.Add(1)
	return errors.New("no such topic")
}
func (brokenPublisher) Close() error { return nil }

// A handler whose outputs cannot be published has failed: that is an attempt.
func TestNoHotLoopUnpublishableOutputs(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	svc := start(t, setup{
		Route: func(s *service) {
			s.Router.AddHandler(uniqueName("handler"), s.Queue, s.Sub, "outputs", brokenPublisher{&asked},
				func(msg *message.Message) ([]*message.Message, error) {
					s.Calls.add(msg)
					if msg.UUID == "silent" {
						return nil, nil
					}

					return []*message.Message{message.NewMessage(watermill.NewUUID(), nil)}, nil
				})
		},
	})
	svc.publish("message", "silent")

	letter := svc.Broker.Take(svc.dlq(), 1)[0]
	assert.Equal(t, "message", rabbit.UUID(letter))
	hasHeaders(t, letter, headers{header.Reason: string(retry.ReasonUnpublishable), header.Attempts: "2"})
	await.Stays(t, 500*time.Millisecond, func() bool {
		return asked.Load() == 2 && svc.Calls.count() == 3
	}, "more handler calls")
	assert.Equal(t, []int{1, 2}, svc.Calls.attempts("message"))
}

// The queue is deleted under its consumer: no handler sees the empty message that a cancelled
// consumer may get, and the consumer comes back, with everything declared again.
func TestNoHotLoopGhostDeliveries(t *testing.T) {
	t.Parallel()
	eachQueueType(t, func(t *testing.T, queueType string) {
		svc := start(t, setup{QueueType: queueType, Handler: byFate})
		for range 2 {
			svc.Broker.Remove(svc.exchange(), svc.dlq(), svc.retryQueue(200*time.Millisecond), svc.Queue)
			await.Until(t, func() bool { return svc.Broker.Consumers(svc.Queue) == 1 }, "the consumer comes back")
		}
		svc.publish("once", "never")

		assert.Equal(t, map[string]string{"never": "exhausted"}, reasons(svc.Broker.Take(svc.dlq(), 1)))
		await.Until(t, func() bool { return svc.Calls.count() == 4 }, "handler calls")
		assert.Equal(t, map[string]int{"once": 2, "never": 2}, svc.Calls.ids())
		assert.LessOrEqual(t, len(svc.Logs.with("Consuming")), 5, "it tries again, but does not spin")
	})
}

// Nobody has provisioned what the copies are published to: deliveries are held, and handlers are
// not called again.
func TestNoHotLoopNothingProvisioned(t *testing.T) {
	t.Parallel()
	uri := brokertest.URI(t)
	network := newProxy(t, uri)
	queue := uniqueName("promise")
	broker := newRabbit(t, uri)
	broker.Declare(queue, mainQueueArguments("quorum"))
	svc := start(t, setup{Tiers: true,
		URI: network.URI, Queue: queue, QueueType: "quorum", Prefetch: 20,
		Options: amqpretry.Options{Policies: oneRetry, AssumeTopology: true, Concurrency: 2}, Handler: byFate,
	})
	failing := rabbit.Numbered("never", 3)
	svc.publish(append(failing, rabbit.Numbered("ok", 50)...)...)
	await.Until(t, func() bool { return svc.Calls.count() == 53 }, "each is handled once")
	await.Stays(t, time.Second, func() bool { return svc.Calls.count() == 53 }, "a handler is called again")
	assert.ErrorContains(t, svc.reportedHeld(3).Err, svc.exchange())
	assert.Equal(t, 1, network.dialled(forwarder), "a missing exchange costs channels, not connections")

	plan := must(svc.Retrier.Plan(queue))(t)
	broker.Do(func(ch *amqp091.Channel) error { return plan.Declare(ch) })
	assert.Len(t, reasons(broker.Take(svc.dlq(), 3)), 3, "once provisioned, it goes on")
	assert.Equal(t, 56, svc.Calls.count())
}

// The queue to consume from is deleted and may not be declared again: trying is bounded, and goes
// on until it is back.
func TestNoHotLoopQueueMissing(t *testing.T) {
	t.Parallel()
	queue := uniqueName("promise")
	broker := newRabbit(t, brokertest.URI(t))
	provision := func() {
		broker.Do(func(ch *amqp091.Channel) error {
			_, err := ch.QueueDeclare(queue, true, false, false, false, mainQueueArguments("classic"))
			return err
		})
	}
	provision()
	svc := start(t, setup{Tiers: true,
		Queue: queue, Options: amqpretry.Options{AssumeTopology: true},
		Handler: succeed,
	})
	broker.Remove("", queue)
	const reported = "Cannot consume"
	await.Until(t, func() bool { return len(svc.Logs.with(reported)) >= 7 }, "it is tried again, and reported")
	// A busy machine only makes the pauses between them longer.
	attempts := svc.Logs.with(reported)
	assert.GreaterOrEqual(t, attempts[6].At.Sub(attempts[0].At), 1190*time.Millisecond,
		"0.8 times 75, 112, 168, 253, 379 and 500 ms: the pauses of fastReconnect, but for the first one")

	provision()
	svc.publish("message")
	await.Until(t, func() bool { return svc.Calls.count() == 1 }, "it is consumed again")
	assert.Equal(t, map[string]int{"message": 1}, svc.Calls.ids())
}

// giveBack takes a message and loses it with its channel, as a process does that dies of it.
func giveBack(t *testing.T, broker *rabbit.Client, queue string, times int) {
	t.Helper()
	for range times {
		broker.Do(func(ch *amqp091.Channel) error {
			deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
			if err != nil {
				return err
			}
			await.Closed(t, deliveries, "a delivery")

			return ch.Close()
		})
	}
}

// A message that its consumers die of is a failed attempt at the crash limit, without another call
// of the handler.
func TestNoHotLoopCrashLimit(t *testing.T) {
	t.Parallel()
	const limit = 3
	type row struct {
		policy config.Policy
		calls  []int
		dead   bool
	}
	each(t, map[string]row{
		"retried":       {config.Policy{Delays: ms(200), CrashLimit: limit}, []int{2}, false},
		"dead-lettered": {config.Policy{Mode: config.ModeDeadLetter, CrashLimit: limit}, nil, true},
	}, func(t *testing.T, _ string, test row) {
		decoded := new(decoding)
		svc := newService(t, setup{
			QueueType: "quorum",
			Options:   amqpretry.Options{Policies: config.Policies{Default: test.policy}},
			Configure: func(c *amqp.Config) { c.Marshaler = decoded },
			Handler:   succeed,
		})
		require.NoError(t, svc.Sub.SubscribeInitialize(svc.Queue))
		svc.publish("killer")
		giveBack(t, svc.Broker, svc.Queue, limit)
		svc.publish("harmless")
		svc.run()

		await.Until(t, func() bool {
			return len(svc.Calls.of("harmless")) == 1 && len(svc.Calls.of("killer")) == len(test.calls)
		}, "handled")
		if test.dead {
			letter := svc.Broker.Take(svc.dlq(), 1)[0]
			assert.Equal(t, "killer", rabbit.UUID(letter))
			assert.Equal(t, string(retry.ReasonCrashed), rabbit.Text(letter, header.Reason))
		}
		await.Stays(t, 500*time.Millisecond, func() bool {
			return svc.Calls.count() == 1+len(test.calls)
		}, "more handler calls")
		assert.Equal(t, test.calls, svc.Calls.attempts("killer"))
		assert.EqualValues(t, len(test.calls), decoded.killers.Load(), "a marshaler can be what kills")
	})
}

type decoding struct {
	amqp.DefaultMarshaler

	killers atomic.Int32
}

func (d *decoding) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	msg, err := d.DefaultMarshaler.Unmarshal(delivery)
	if err == nil && msg.UUID == "killer" {
		d.killers.Add(1)
	}

	return msg, err
}

// The whole life of a message that kills its consumer every time.
func TestNoHotLoopCrashing(t *testing.T) {
	t.Parallel()
	const limit = 3
	network := newProxy(t, brokertest.URI(t))
	svc := start(t, setup{
		URI: network.URI, QueueType: "quorum", Prefetch: 1,
		Options: amqpretry.Options{Policies: config.Policies{Default: config.Policy{Delays: ms(200),
			CrashLimit: limit}}},
		Handler: func(msg *message.Message) error {
			network.cut(subscriber)
			<-msg.Context().Done()

			return errFate
		},
	})
	svc.publish("killer")

	letter := svc.Broker.Take(svc.dlq(), 1)[0]
	assert.Equal(t, string(retry.ReasonCrashed), rabbit.Text(letter, header.Reason))
	assert.Equal(t, []int{1, 1, 1, 2, 2, 2}, svc.Calls.attempts("killer"))
	assert.Contains(t, rabbit.Text(letter, header.History), string(retry.ReasonCrashed))
	await.Stays(t, 500*time.Millisecond, func() bool { return svc.Calls.count() == 2*limit }, "more handler calls")
}

// A middleware that was forgotten, and a subscriber that is not the retrier's, are said and do not
// spin.

// failingFirst fails the first calls of each message, whatever the library tells of them.
func failingFirst(times int) func(*message.Message) error {
	var (
		mu    sync.Mutex
		calls = map[string]int{}
	)

	return func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if calls[msg.UUID]++; calls[msg.UUID] <= times {
			return errFate
		}

		return nil
	}
}

// withoutDelivery is a message's context without what the retrier has put there.
type withoutDelivery struct{ context.Context }

func (c withoutDelivery) Value(key any) any {
	if fmt.Sprintf("%T", key) == "retry.deliveryKey" {
		return nil
	}

	return c.Context.Value(key)
}

const noMiddlewareLog = "No message reaches retrier.Middleware"

// Without the middleware a failing message comes back ever more slowly, others pass it, and one
// line says why.
func TestNoHotLoopWithoutMiddleware(t *testing.T) {
	t.Parallel()

	eachQueueType(t, func(t *testing.T, queueType string) {
		// The pause of the library is fixed. A machine that stands still makes a close longer
		// and never shorter, so the shortest of three closes counts.
		took := closeDuringPause(t, queueType)
		for again := 0; again < 2 && took >= 4*time.Second; again++ {
			took = closeDuringPause(t, queueType)
		}
		assert.Less(t, took, 4*time.Second, "a close ends the pause, which is 5 s")
	})
}

// closeDuringPause runs a service without the middleware until its failing message waits for 5 s.
// It returns how long a close takes then.
func closeDuringPause(t *testing.T, queueType string) time.Duration {
	t.Helper()
	c := setup{QueueType: queueType, Prefetch: 3, Options: amqpretry.Options{CloseTimeout: 15 * time.Second}}
	c.Route = func(svc *service) {
		bare(t, svc)
		svc.Router.AddConsumerHandler("handler", svc.Queue, svc.Sub, svc.recorded(byFate))
	}
	svc := start(t, c)
	began := time.Now()
	svc.publish("never")
	svc.publish(rabbit.Numbered("ok", 20)...)

	others := func() []call {
		return slices.DeleteFunc(svc.Calls.All(), func(c call) bool { return c.ID == "never" })
	}
	await.Until(t, func() bool { return len(others()) >= 20 }, "others pass it")
	await.Until(t, func() bool { return len(svc.Calls.of("never")) >= 7 }, "it comes back")
	assert.GreaterOrEqual(t, time.Since(began), 6300*time.Millisecond, "after 0.1, 0.2 … 3.2 s")
	assert.Len(t, others(), 20, "each once")
	logged := svc.Logs.with(noMiddlewareLog)
	require.Len(t, logged, 1)
	assert.Equal(t, "error", logged[0].Level)
	assert.Equal(t, svc.Queue, logged[0].Fields["topic"])
	require.ErrorContains(t, logged[0].Err, "router.AddMiddleware(retrier.Middleware)")

	took := svc.close()
	left := svc.Broker.Take(svc.Queue, 1)
	assert.Equal(t, []string{"never"}, []string{rabbit.UUID(left[0])})
	for key := range left[0].Headers {
		assert.NotContains(t, key, "amqpretry", "nothing is counted")
	}

	return took
}

// Once the middleware has seen a message, a nack that it did not see is Watermill's plain one.
func TestPlainNackBesideTheMiddlewareIsNotSlowedDown(t *testing.T) {
	t.Parallel()

	var locked calls
	c := setup{Handler: succeed}
	c.Route = func(svc *service) {
		bare(t, svc, func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				if msg.UUID == "locked" {
					if locked.add(msg); locked.count() < 100 {
						return nil, errors.New("not yet")
					}
				}

				return h(msg)
			}
		}, svc.Retrier.Middleware)
		svc.Router.AddConsumerHandler("handler", svc.Queue, svc.Sub, svc.recorded(succeed))
	}
	svc := start(t, c)
	svc.publish("first")
	await.Until(t, func() bool { return len(svc.Calls.of("first")) == 1 }, "the middleware sees a message")
	svc.publish("locked")
	await.Until(t, func() bool { return len(svc.Calls.of("locked")) == 1 }, "it gets through")
	assert.Less(t, shortestGap(locked.All()), firstNackPause)
	assert.Empty(t, svc.Logs.with(noMiddlewareLog))
}

// firstNackPause is the shortest pause before a nack that no middleware has seen. 99 nacks with
// pauses take 8 minutes, as the pauses grow.
const firstNackPause = 100 * time.Millisecond

// shortestGap returns the shortest time between two calls that follow each other. A busy machine
// makes many of them longer, but a pause makes all of them longer.
func shortestGap(all []call) time.Duration {
	shortest := time.Hour
	for i := 1; i < len(all); i++ {
		shortest = min(shortest, all[i].At.Sub(all[i-1].At))
	}

	return shortest
}

// Under policy off a nack is what it is without the retrier, and nothing is said.
func TestPlainNackUnderPolicyOff(t *testing.T) {
	t.Parallel()

	c := setup{URI: brokertest.URI(t)}
	c.Options.Policies = config.Policies{Default: config.Policy{Mode: config.ModeOff}}
	c.Route = func(svc *service) {
		bare(t, svc)
		svc.Router.AddConsumerHandler("handler", svc.Queue, svc.Sub, svc.recorded(failingFirst(99)))
	}
	svc := start(t, c)
	svc.publish("1")
	await.Until(t, func() bool { return len(svc.Calls.of("1")) == 100 }, "it comes back at once")
	assert.Less(t, shortestGap(svc.Calls.of("1")), firstNackPause)
	assert.Empty(t, svc.Logs.with(noMiddlewareLog))
}

const foreignLog = "Message was not received through this retrier"

// A subscriber of watermill-amqp that was not made with the retrier's config gets no retries: that
// is said once for each handler, as an error, and the messages pass untouched.
func TestForeignSubscriberIsAnError(t *testing.T) {
	t.Parallel()

	uri := brokertest.URI(t)
	c := setup{URI: uri}
	var stock *amqp.Subscriber
	c.Route = func(svc *service) {
		conf := plainConfig(uri, "classic")
		var err error
		stock, err = amqp.NewSubscriber(conf, svc.Logs) // not with svc.Retrier.Config()
		require.NoError(t, err)
		svc.Router.AddConsumerHandler("forgetful", svc.Queue, stock, svc.recorded(failingFirst(3)))
	}
	svc := start(t, c)
	svc.publish("1", "2")
	await.Until(t, func() bool {
		return len(svc.Calls.of("1")) == 4 && len(svc.Calls.of("2")) == 4
	}, "both are handled")

	logged := svc.Logs.with(foreignLog)
	require.Len(t, logged, 1)
	assert.Equal(t, "error", logged[0].Level)
	assert.Equal(t, "forgetful", logged[0].Fields["handler_name"])
	assert.Equal(t, svc.Queue, logged[0].Fields["topic"])
	require.ErrorContains(t, logged[0].Err, "amqp.NewSubscriber(retrier.Config(), logger)")
}

// A message that something outside of the middleware has copied has lost its delivery.
func TestCopiedMessageIsAnError(t *testing.T) {
	t.Parallel()

	c := setup{URI: brokertest.URI(t)}
	c.Route = func(svc *service) {
		bare(t, svc, func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				copied := msg.Copy()
				// The names are the router's, as a decorator that copies before it would leave
				// them.
				copied.SetContext(withoutDelivery{msg.Context()})

				return h(copied)
			}
		}, svc.Retrier.Middleware)
		svc.Router.AddConsumerHandler("handler", svc.Queue, svc.Sub, svc.recorded(failingFirst(1)))
	}
	svc := start(t, c)
	svc.publish("1")
	await.Until(t, func() bool { return len(svc.Calls.of("1")) == 2 }, "it is handled")
	logged := svc.Logs.with(foreignLog)
	require.Len(t, logged, 1)
	assert.Equal(t, "error", logged[0].Level)
	require.ErrorContains(t, logged[0].Err, "copies")
	assert.Len(t, svc.Logs.with(noMiddlewareLog), 1)
}

// Messages of another retrier are no mistake, on stock subscribers either, nor are those under
// policy off.
func TestMessagesOfOtherRetriersAreNoError(t *testing.T) {
	t.Parallel()

	uri := brokertest.URI(t)
	for name, test := range map[string]struct {
		mode    config.Mode
		swapped bool
	}{"outside": {}, "inside": {swapped: true}, "off": {mode: config.ModeOff}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			others := newLogs(t)
			other := newRetrier(t, amqp.NewDurableQueueConfig(uri), amqpretry.Options{Logger: others})
			c := setup{URI: uri}
			c.Options.Policies = retries(ms(50)...)
			c.Options.HoldWarning = await.Bound // a busy broker that confirms late is no error either
			c.Options.Policies.Default.Mode = test.mode
			if test.mode == config.ModeOff {
				c.Options.Policies = config.Policies{Default: config.Policy{Mode: config.ModeOff}}
			}
			c.Route = func(svc *service) {
				middlewares := []message.HandlerMiddleware{other.Middleware, svc.Retrier.Middleware}
				if test.swapped {
					slices.Reverse(middlewares)
				}
				bare(t, svc, middlewares...)
				stock := must(amqp.NewSubscriber(svc.Retrier.Config(), watermill.NopLogger{}))(t)
				svc.Router.AddConsumerHandler("stock", svc.Queue, stock, svc.recorded(failingFirst(1)))
			}
			svc := start(t, c)
			svc.publish("1")
			await.Until(t, func() bool { return len(svc.Calls.of("1")) == 2 }, "it is retried")
			for _, l := range slices.Concat(svc.Logs.All(), others.All()) {
				if l.Level == "error" && l.Text != "Handler returned error" {
					t.Errorf("logged: %s", l)
				}
			}
		})
	}
}
