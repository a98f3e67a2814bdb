package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// archive is a handler of dead letters that keeps what it was told.
type archive struct {
	mu      sync.Mutex
	letters map[string]retry.DeadLetter
	bodies  map[string]string
	calls   []call
	fail    func(id string, call int) bool // optional
}

func (a *archive) handle(msg *message.Message) error {
	letter, ok := retry.DeadLetterFromContext(msg.Context())
	if !ok {
		return errors.New("no dead letter")
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, call{At: time.Now(), ID: msg.UUID})
	if a.fail != nil && a.fail(msg.UUID, len(a.of(msg.UUID))) {
		return errFate
	}
	if a.letters == nil {
		a.letters, a.bodies = map[string]retry.DeadLetter{}, map[string]string{}
	}
	a.letters[msg.UUID], a.bodies[msg.UUID] = letter, string(msg.Payload)

	return nil
}

// of gives the calls for one dead letter. mu is held.
func (a *archive) of(id string) []call {
	var found []call
	for _, c := range a.calls {
		if c.ID == id {
			found = append(found, c)
		}
	}

	return found
}

func (a *archive) callsOf(id string) []call {
	a.mu.Lock()
	defer a.mu.Unlock()

	return a.of(id)
}

func (a *archive) get(id string) (retry.DeadLetter, string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l, ok := a.letters[id]

	return l, a.bodies[id], ok
}

func (s *service) file(a *archive) {
	s.t.Helper()
	sub := must(s.Retrier.NewDeadLetterSubscriber())(s.t)
	s.Router.AddConsumerHandler(uniqueName("archive"), s.Queue, sub, a.handle)
}

// Dead letters are a topic like any other, in the same router and behind the same middleware: their
// handler gets the message and why it has failed, and what it takes is out of the queue.
func TestDeadLetters_AreATopic(t *testing.T) {
	t.Parallel()

	for name, strategy := range map[string]config.Strategy{"own": "", "shared": config.StrategyShared} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			a := &archive{}
			c := setup{QueueType: "quorum", Handler: func(msg *message.Message) error {
				if msg.UUID == "permanent" {
					return retry.Permanent(&orderError{number: 7})
				}

				return byFate(msg)
			}}
			c.Configure = func(conf *amqp.Config) { conf.Marshaler = picky{} }
			c.Options = shared(t, uniqueName("shared"), false, ms(100)...)
			c.Options.Policies.Default.Strategy, c.Options.Policies.Default.MaxAge = strategy, time.Hour
			svc := newService(t, c)
			handlers := svc.Router.Handlers()
			svc.file(a)
			svc.run()

			before := time.Now()
			svc.Broker.Publish(svc.Queue, amqp091.Publishing{Headers: amqp091.Table{
				"_watermill_message_uuid": "never-1", "kind": "order",
			}, Body: []byte("the body")})
			svc.publish("permanent", "ok-2", "panic-3")
			svc.Broker.Publish(svc.Queue, amqp091.Publishing{Body: []byte("reject"), MessageId: "undecodable"})

			ids := []string{"never-1", "permanent", "panic-3", "undecodable"}
			for _, id := range ids {
				await.Until(t, func() bool { _, _, ok := a.get(id); return ok }, "%s is filed", id)
			}
			await.Until(t, func() bool {
				return svc.Broker.Depth(svc.dlq()) == 0
			}, "what is filed is out of the queue")

			var handler string
			for name := range handlers {
				handler = name
			}
			letter, body, _ := a.get("never-1")
			assert.Equal(t, "the body", body)
			assert.WithinRange(t, letter.FirstFailure, before.Add(-time.Millisecond), time.Now())
			assert.GreaterOrEqual(t, letter.LastFailure.Sub(letter.FirstFailure), 90*time.Millisecond)
			require.Len(t, letter.History, 2)
			assert.Equal(t, errFate.Error(), letter.History[0].Error)
			assert.Equal(t, letter.Since.Add(time.Hour), letter.Deadline)
			assert.NotEmpty(t, letter.Host)
			letter.FirstFailure, letter.LastFailure, letter.History, letter.Host = time.Time{}, time.Time{}, nil, ""
			letter.Since, letter.Deadline = time.Time{}, time.Time{}
			assert.Equal(t, retry.DeadLetter{
				Reason: retry.ReasonExhausted, Error: errFate.Error(), ErrorType: "*errors.errorString",
				Queue: svc.Queue, Topic: svc.Queue, Handler: handler, Calls: 2, RoutingKey: svc.Queue,
			}, letter)

			for id, reason := range map[string]retry.Reason{
				"permanent": retry.ReasonPermanent, "panic-3": retry.ReasonPanic,
				"undecodable": retry.ReasonUndecodable,
			} {
				letter, _, _ := a.get(id)
				assert.Equal(t, reason, letter.Reason, id)
			}
			letter, body, _ = a.get("undecodable")
			assert.Equal(t, "reject", body)
			assert.Zero(t, letter.Calls)
			letter, _, _ = a.get("permanent")
			assert.Equal(t, "*tests.orderError", letter.ErrorType)

			assert.Empty(t, svc.Logs.with("was not received through this retrier"), "the middleware knows them")
			svc.close()
			for _, id := range ids {
				assert.Len(t, a.callsOf(id), 1, id)
			}
			assert.Zero(t, svc.Broker.Depth(svc.dlq()))
		})
	}
}

// A dead letter whose handler fails stays where it is: it does not spin, and holds up neither those
// behind it nor a close.
func TestDeadLetters_AFailureStays(t *testing.T) {
	t.Parallel()

	a := &archive{fail: func(id string, call int) bool { return id != "never-2" && (id != "never-1" || call < 3) }}
	c := setup{URI: brokertest.URI(t), Handler: byFate, Prefetch: 1} // as watermill-amqp's configs have it
	c.Options.Policies = config.Policies{Default: config.Policy{Mode: config.ModeDeadLetter}}
	c.Options.CloseTimeout = 2 * time.Minute
	svc := newService(t, c)
	svc.file(a)
	svc.run()

	began := time.Now()
	svc.publish("never-0", "never-1", "never-2")
	await.Until(t, func() bool { _, _, ok := a.get("never-2"); return ok }, "those behind it go on")
	await.Until(t, func() bool {
		_, _, ok := a.get("never-1")
		return ok
	}, "it is filed at the third time")
	took := time.Since(began)
	calls := a.callsOf("never-1")
	assert.GreaterOrEqual(t, calls[1].At.Sub(calls[0].At), 950*time.Millisecond)
	assert.GreaterOrEqual(t, calls[2].At.Sub(calls[1].At), 1950*time.Millisecond)
	assert.LessOrEqual(t, len(a.callsOf("never-0")), int(took/time.Second)+2, "no hot loop")

	var pauses []time.Duration
	for _, e := range svc.Events(retry.EventSetAside) {
		assert.Equal(t, []string{svc.Queue, svc.dlq()}, []string{e.Topic, e.Queue})
		require.ErrorIs(t, e.Err, errFate)
		assert.Contains(t, e.Handler, "archive")
		if e.Message.UUID == "never-1" {
			pauses = append(pauses, e.Took)
		}
	}
	logged := svc.Logs.with("Dead-letter handler failed")
	require.NotEmpty(t, logged)
	assert.EqualError(t, logged[0].Err, errFate.Error())
	assert.Equal(t, []time.Duration{time.Second, 2 * time.Second}, pauses, "it is told of what is set aside")

	svc.Broker.Publish(svc.dlq(), with("returned", amqp091.Table{header.DeliveryCount: int64(9)}))
	await.Until(t, func() bool {
		return slices.ContainsFunc(svc.Events(retry.EventSetAside), func(e retry.Event) bool {
			return e.Message.UUID == "returned" && e.Took == time.Minute
		})
	}, "one that has come often has a long pause")
	assert.Less(t, svc.close(), 30*time.Second, "a close does not wait for the pause")
	left := svc.Broker.Take(svc.dlq(), 2)
	if rabbit.UUID(left[0]) == "returned" {
		slices.Reverse(left)
	}
	assert.Equal(t, []string{"never-0", "returned"}, []string{rabbit.UUID(left[0]), rabbit.UUID(left[1])}, "none lost")
	if newRabbit(t, c.URI).AtLeast(4, 3) { // before, the broker counts every return
		assert.NotContains(t, left[0].Headers, header.DeliveryCount, "a close is no failure")
	}
	assert.Equal(t, "exhausted", rabbit.Text(left[0], header.Reason))
	assert.Zero(t, svc.Broker.Depth(svc.dlq()))
}

// However many dead letters fail for ever, within the bound, those behind them are handled: the
// broker would hand out again first what it gets back. The failing ones do not spin meanwhile.
func TestDeadLetters_MakeRoom(t *testing.T) {
	t.Parallel()

	eachQueueType(t, func(t *testing.T, queueType string) {
		uri, queue, failing := brokertest.URI(t), uniqueName("room"), 120 // more than twice the prefetch
		broker := newRabbit(t, uri)
		t.Cleanup(func() { broker.Remove("", queue+".dlq") })
		conf := amqp.NewDurableQueueConfig(uri)
		options := amqpretry.Options{AssumeTopology: true}
		declareDeadLetters(t, broker, queue+".dlq", queueType)
		for i := range failing {
			broker.Publish(queue+".dlq", rabbit.Messages(fmt.Sprintf("never-%d", i))...)
		}
		broker.Publish(queue+".dlq", rabbit.Messages("behind-1", "behind-2")...)

		a := &archive{fail: func(id string, _ int) bool { return strings.HasPrefix(id, "never") }}
		retrier := newRetrier(t, conf, options)
		sub := must(retrier.NewDeadLetterSubscriber())(t)
		router := must(message.NewRouter(message.RouterConfig{}, newLogs(t)))(t)
		router.AddMiddleware(retrier.Middleware)
		router.AddConsumerHandler("archive", queue, sub, a.handle)
		ended := make(chan error, 1)
		began := time.Now()
		go func() { ended <- router.Run(t.Context()) }()

		for _, id := range []string{"behind-1", "behind-2"} {
			await.Until(t, func() bool { _, _, ok := a.get(id); return ok }, "%s is filed", id)
		}
		await.Until(t, func() bool { return len(a.callsOf("never-0")) >= 3 }, "the failing ones come again")
		most := int(time.Since(began)/time.Second) + 2
		for i := range failing {
			assert.LessOrEqual(t, len(a.callsOf(fmt.Sprintf("never-%d", i))), most, "no hot loop")
		}

		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
		require.NoError(t, retrier.Close())
		await.Until(t, func() bool { return broker.Depth(queue+".dlq") == failing }, "all that is set aside is back")
	})
}

func declareDeadLetters(t *testing.T, broker *rabbit.Client, queue, queueType string) {
	t.Helper()
	arguments := amqp091.Table{"x-queue-type": queueType}
	if queueType == "quorum" {
		arguments["x-delivery-limit"] = int64(2147483647)
	}
	broker.Declare(queue, arguments)
}

// What the broker itself has dead-lettered from a protected queue, and what people have put there,
// is told as far as it is known.
func TestDeadLetters_OfOthers(t *testing.T) {
	t.Parallel()

	uri, queue := brokertest.URI(t), uniqueName("protected")
	broker := newRabbit(t, uri)
	t.Cleanup(func() { removeProtected(broker, queue) })
	conf := amqp.NewDurableQueueConfig(uri)
	conf.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum"}
	retrier := newRetrier(t, conf, amqpretry.Options{Policies: config.Policies{Default: config.Policy{
		Delays: ms(50), Protect: config.ProtectionArguments,
	}}})
	sub, err := retrier.NewSubscriber()
	require.NoError(t, err)
	require.NoError(t, sub.SubscribeInitialize(queue))

	// Rejected by a consumer that is not ours: once fresh, and once on its way through its retries.
	began := time.Now()
	retried := rabbit.Messages("retried")[0]
	retried.Headers[header.Version], retried.Headers[header.Queue], retried.Headers[header.Count] = "1", queue, "1"
	retried.Headers[header.Error], retried.Headers[header.Attempts], retried.Headers[header.Topic] = "boom", "1",
		"topic"
	forged := rabbit.Messages("forged")[0]
	forged.Headers[header.Version], forged.Headers[header.Queue], forged.Headers[header.Count] = "1", "another", "1"
	forged.Headers[header.Error] = "a lie"
	broker.Publish(queue, append(rabbit.Messages("fresh"), retried, forged)...)
	broker.Do(func(ch *amqp091.Channel) error {
		for range 3 {
			var d amqp091.Delivery
			await.Until(t, func() bool {
				var ok bool
				d, ok, err = ch.Get(queue, false)
				return err == nil && ok
			})
			if err := d.Reject(false); err != nil {
				return err
			}
		}

		return nil
	})
	broker.Publish(queue+".dlq", amqp091.Publishing{Headers: amqp091.Table{
		header.Version: "1", header.Count: "-1", header.UUID: "nameless", header.Reason: "evil",
		header.Error: strings.Repeat("x", 5000) + "\xff",
	}})
	broker.Publish(queue+".dlq", amqp091.Publishing{MessageId: "by hand", Body: []byte("x"),
		Headers: amqp091.Table{"x-death": "nonsense"}})

	a := &archive{}
	dead := must(retrier.NewDeadLetterSubscriber())(t)
	out := must(dead.Subscribe(t.Context(), queue))(t)
	for range 5 {
		msg := receive(t, out)
		require.NoError(t, a.handle(msg))
		msg.Ack()
	}

	fresh, _, _ := a.get("fresh")
	assert.WithinRange(t, fresh.LastFailure, began.Add(-time.Minute), time.Now().Add(time.Minute), "the broker's clock")
	fresh.LastFailure = time.Time{}
	assert.Equal(t, retry.DeadLetter{Reason: retry.ReasonRejected, Queue: queue, RoutingKey: queue}, fresh)

	again, _, _ := a.get("retried")
	assert.Equal(t, retry.ReasonRejected, again.Reason)
	assert.Equal(t, []string{"boom", "topic"}, []string{again.Error, again.Topic}, "what it had failed of before")
	assert.Equal(t, 1, again.Calls)

	lie, _, _ := a.get("forged")
	lie.LastFailure = time.Time{}
	assert.Equal(t, retry.DeadLetter{Reason: retry.ReasonRejected, Queue: queue, RoutingKey: queue}, lie,
		"of another queue")

	nameless, _, _ := a.get("nameless")
	assert.Equal(t, []string{queue, ""}, []string{nameless.Queue, string(nameless.Reason)}, "no such reason")
	assert.Len(t, nameless.Error, wire.MaxErrorBytes)

	hand, body, found := a.get("by hand")
	require.True(t, found)
	assert.Equal(t, "x", body)
	assert.Equal(t, retry.DeadLetter{Queue: queue}, hand)
}

// Whoever subscribes to dead letters alone declares their queue and nothing else, whatever the
// policy of the topic is.
func TestDeadLetters_DeclareTheirQueueOnly(t *testing.T) {
	t.Parallel()

	for mode, policy := range map[string]config.Policy{"retry": {Delays: ms(50)}, "off": {Mode: config.ModeOff}} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()

			uri, queue := brokertest.URI(t), uniqueName("letters")
			broker := newRabbit(t, uri)
			t.Cleanup(func() { broker.Remove("", queue+".dlq") })
			retrier := newRetrier(t, amqp.NewDurableQueueConfig(uri),
				amqpretry.Options{Policies: config.Policies{Default: policy}})
			sub := must(retrier.NewDeadLetterSubscriber())(t)
			require.NoError(t, sub.SubscribeInitialize(queue))

			assert.Zero(t, broker.Depth(queue+".dlq"))
			assert.Equal(t, -1, broker.Depth(queue))
			assert.Equal(t, -1, broker.Depth(queue+".retry.50ms"))

			depths := must(retrier.QueueDepths(t.Context()))(t)
			assert.Equal(t, []retry.QueueDepth{{Queue: queue + ".dlq", Role: retry.QueueRoleDeadLetter,
				MainQueue: queue}}, depths)

			// It is declared as a plan declares it.
			own := must(retrier.NewSubscriber())(t)
			t.Cleanup(func() { broker.Remove(queue+".retry", queue, queue+".retry.50ms") })
			require.NoError(t, own.SubscribeInitialize(queue))
		})
	}

	t.Run("assume", func(t *testing.T) {
		t.Parallel()
		retrier := newRetrier(t, amqp.NewDurableQueueConfig(brokertest.URI(t)),
			amqpretry.Options{AssumeTopology: true})
		sub := must(retrier.NewDeadLetterSubscriber())(t)
		queue := uniqueName("letters")
		_, err := sub.Subscribe(t.Context(), queue)
		assert.ErrorContains(t, err, fmt.Sprintf("cannot consume from queue %q: the queue does not exist", queue+
			".dlq"))
	})
}

// A lost connection gives back what is handed out or set aside, once.
func TestDeadLetters_ConnectionLost(t *testing.T) {
	t.Parallel()

	network := newProxy(t, brokertest.URI(t))
	var lost atomic.Bool
	var failed atomic.Int32
	a := &archive{fail: func(string, int) bool {
		if lost.Load() {
			return false
		}
		failed.Add(1)

		return true
	}}
	c := setup{URI: network.URI, Handler: byFate}
	c.Options.Policies = config.Policies{Default: config.Policy{Mode: config.ModeDeadLetter}}
	svc := newService(t, c)
	svc.file(a)
	svc.run()
	svc.publish("never-0")
	await.Until(t, func() bool { return len(a.callsOf("never-0")) == 1 }, "its handler fails")
	network.cut(letters)
	lost.Store(true)
	await.Until(t, func() bool { _, _, ok := a.get("never-0"); return ok }, "it is handed out again")
	svc.close()
	assert.Len(t, a.callsOf("never-0"), int(failed.Load())+1, "once")
	assert.Zero(t, svc.Broker.Depth(svc.dlq()))
}

// A retrier that closes closes this subscriber as well, and after it none is made.
func TestDeadLetters_Close(t *testing.T) {
	t.Parallel()

	uri, queue := brokertest.URI(t), uniqueName("letters")
	t.Cleanup(func() { newRabbit(t, uri).Remove("", queue+".dlq") })
	retrier := must(adapter.New(amqp.NewDurableQueueConfig(uri), amqpretry.Options{}))(t)
	sub := must(retrier.NewDeadLetterSubscriber())(t)
	out := must(sub.Subscribe(context.Background(), queue))(t)
	require.NoError(t, retrier.Close())
	await.Closed(t, out, "the output")
	require.NoError(t, sub.Close())
	_, err := retrier.NewDeadLetterSubscriber()
	assert.ErrorContains(t, err, "closed")
}

func lettersOf(t *testing.T, svc *service) *dlq.Queue {
	t.Helper()
	return openDLQ(t, svc.Broker.URI).Queue(svc.Queue)
}

func openDLQ(t *testing.T, uri string) *dlq.Client {
	t.Helper()
	client := must(dlq.Open(t.Context(), dlq.Config{URI: uri, NoDeliveryLimitPolicy: true}))(t)
	t.Cleanup(func() { _ = client.Close() })

	return client
}

func hasDead(t *testing.T, letters *dlq.Queue, n int) {
	t.Helper()
	await.Until(t, func() bool {
		depth, err := letters.Depth(t.Context())
		return err == nil && depth == n
	}, "%d dead letters", n)
}

// A dead letter that is replayed has a new life, and only in the queue that has failed it; one that
// dies again says so.
func TestReplayedMessagesLiveAgain(t *testing.T) {
	t.Parallel()
	for name, strategy := range map[string]config.Strategy{"own": "", "shared": config.StrategyShared} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			uri, topic := brokertest.URI(t), uniqueName("events")
			group := func(name string, s *seen, h func(*message.Message) error) *service {
				c := setup{URI: uri, Queue: topic, Handler: s.handler(h)}
				c.Options.Policies = config.Policies{Default: config.Policy{Delays: ms(60), Strategy: strategy,
					MaxAge: 3 * time.Second}}
				c.Options.Names.Shared = topic + "-shared"
				c.Configure = func(conf *amqp.Config) {
					*conf = amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(name))
				}

				return start(t, c)
			}
			var failed, other seen
			broker := newRabbit(t, uri)
			t.Cleanup(func() {
				_ = broker.Try(func(ch *amqp091.Channel) error { return ch.ExchangeDelete(topic, false, false) })
			})
			group("a", &failed, func(msg *message.Message) error { // the first life, and the first call of the second
				if a, _ := retry.AttemptFromContext(msg.Context()); a.Replays == 1 && a.Number == 2 {
					return nil
				}

				return errors.New("not yet")
			})
			group("b", &other, succeed)
			broker.PublishTo(topic, "", rabbit.Messages("1")...)
			client := openDLQ(t, uri)
			letters := client.Queue(topic + "_a")

			hasDead(t, letters, 1)
			letter := must(letters.Get(t.Context(), "1"))(t)
			assert.Equal(t, retry.ReasonExhausted, letter.Reason)
			await.Stays(t, 3200*time.Millisecond, func() bool {
				return failed.count() == 2
			}, "it gets too old for its first life")

			report := must(letters.Run(t.Context(), dlq.Plan{Kind: dlq.Replay}))(t)
			assert.Equal(t, 1, report.Done)
			await.Until(t, func() bool { return failed.count() == 4 }, "called twice again")
			calls := failed.of("1")
			assert.Equal(t, []int{1, 2, 1, 2}, []int{calls[0].Attempt.Number, calls[1].Attempt.Number,
				calls[2].Attempt.Number, calls[3].Attempt.Number})
			assert.Equal(t, []int{0, 0, 1, 1}, []int{calls[0].Attempt.Replays, calls[1].Attempt.Replays,
				calls[2].Attempt.Replays, calls[3].Attempt.Replays})
			assert.Empty(t, calls[2].Metadata, "neither our keys nor Watermill's")
			assert.Equal(t, 1, other.count(), "nobody else sees it again")
			hasDead(t, letters, 0)
		})
	}
}

func TestReplayedMessagesDieAgain(t *testing.T) {
	t.Parallel()
	var s seen
	svc := start(t, setup{Delays: ms(40), Handler: s.handler(failing(99))})
	svc.Broker.Publish(svc.Queue, rabbit.Messages("1", "2", "3")...)
	letters := lettersOf(t, svc)

	hasDead(t, letters, 3)

	report, err := letters.Run(t.Context(), dlq.Plan{Kind: dlq.Replay,
		Canary: dlq.Canary{Messages: 1, Watch: time.Minute}})
	require.NoError(t, err)
	assert.Equal(t, "0 of 1 handled, 1 failed again", report.Canary.Stopped)
	assert.Equal(t, 1, report.Done)
	hasDead(t, letters, 3)
	again := 0
	for letter, err := range letters.Browse(t.Context(), dlq.Filter{MinReplays: 1}) {
		require.NoError(t, err)
		again++
		assert.Equal(t, 4, letter.Calls)
		require.Len(t, letter.History, 4)
		assert.Equal(t, retry.ReasonExhausted, letter.History[1].Reason, "the earlier reason")
		assert.Equal(t, report.Run, letter.Message.Headers[header.Replay])
	}
	assert.Equal(t, 1, again)
}

// What becomes of a canary is told by whoever handles it, through its retries, on both subscribers;
// and nobody is told of other messages.
func TestCanariesAreToldOf(t *testing.T) {
	t.Parallel()
	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		var fixed, postponed, failuresTold atomic.Bool
		svc := run(t, setup{Delays: ms(100, 100), QueueType: "quorum", Handler: func(msg *message.Message) error {
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
		}})
		letters := lettersOf(t, svc)

		for i, id := range []string{"1 succeeds", "2 is retried", "3 dies", "4 is dropped", "5 is postponed",
			"6 waits for those"} {
			svc.publish(id)
			hasDead(t, letters, i+1) // in this order
		}
		fixed.Store(true)

		var told []dlq.CanaryReport
		canary := dlq.Canary{Messages: 5, Tolerate: 2, Watch: time.Minute, OnChange: func(r dlq.CanaryReport) {
			told = append(told, r)
			failuresTold.Store(r.DeadLettered == 1 && r.Dropped == 1)
		}}
		report := must(letters.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Canary: canary}))(t)
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
		hasDead(t, letters, 1)

		again := svc.Broker.Take(svc.dlq(), 1)[0]
		assert.NotContains(t, again.Headers, header.Canary, "a dead letter is no canary any more")
		svc.close()
	})
}

// A publisher writes the header as it likes: it makes nobody publish to a queue that no run listens
// to, and what nobody takes is nobody's error.
func TestForgedCanariesTellNobody(t *testing.T) {
	t.Parallel()
	svc := start(t, setup{Handler: succeed})
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
