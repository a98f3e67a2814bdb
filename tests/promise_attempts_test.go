package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
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

type seen struct{ records[sight] }

type sight struct {
	ID       string
	Attempt  retry.Attempt
	Known    bool // there was an attempt in the context
	Metadata message.Metadata
	Payload  string
	Queue    string // which handler saw it, where a test has several
	At, Left time.Time
}

func (s *seen) handler(h func(*message.Message) error) func(*message.Message) error {
	return func(msg *message.Message) error {
		attempt, known := retry.AttemptFromContext(msg.Context())
		v := sight{
			ID: msg.UUID, Attempt: attempt, Known: known, Metadata: maps.Clone(msg.Metadata),
			Payload: string(msg.Payload),
			Queue:   message.SubscribeTopicFromCtx(msg.Context()), At: time.Now(),
		}
		defer func() { // also when it panics
			v.Left = time.Now()
			s.put(v)
		}()

		return h(msg)
	}
}

func (s *seen) of(id string) []sight { return s.where(func(v sight) bool { return v.ID == id }) }

func ownKeys(metadata message.Metadata) []string {
	var found []string
	for key := range metadata {
		if strings.HasPrefix(key, "amqpretry-") || strings.HasPrefix(key, "x-") || key == "CC" || key == "BCC" {
			found = append(found, key)
		}
	}

	return found
}

func succeed(*message.Message) error { return nil }

// failing gives a handler that fails each message so many times, with an error that tells which.
func failing(times int) func(*message.Message) error {
	return func(msg *message.Message) error {
		if a, _ := retry.AttemptFromContext(msg.Context()); a.Number <= times {
			return fmt.Errorf("failure %d", a.Number)
		}

		return nil
	}
}

func ours(queue string, count any) amqp091.Table {
	return amqp091.Table{
		header.Version: "1", header.ID: "forged", header.Queue: queue, header.Count: count, header.Delay: "200ms",
		header.Attempts: "7", header.Error: "forged error", header.FirstFailure: "2020-01-01T00:00:00.000Z",
	}
}

func with(id string, headers amqp091.Table) amqp091.Publishing {
	p := rabbit.Message(id, id)
	maps.Copy(p.Headers, headers)

	return p
}

// P4: a handler is told where its message stands, and sees nothing of how that is kept.
func TestP4_AttemptFromContext(t *testing.T) {
	t.Parallel()

	eachQueueType(t, func(t *testing.T, queueType string) {
		var s seen
		svc := start(t, setup{Delays: ms(60, 80, 100), QueueType: queueType, Handler: s.handler(failing(3))})

		before := time.Now()
		p := with("1", amqp091.Table{"kind": "order", "amount": int64(12), "nested": amqp091.Table{"a": "b"}})
		svc.Broker.Publish(svc.Queue, p)
		await.Until(t, func() bool { return s.count() == 4 }, "three failures and the success")
		await.Stays(t, 200*time.Millisecond, func() bool { return s.count() == 4 }, "no further call")

		for i, v := range s.of("1") {
			require.True(t, v.Known)
			want := retry.Attempt{
				Number: i + 1, Try: 1, Failures: i, MaxRetries: 3, Last: i == 3, Calls: i, Queue: svc.Queue,
				FirstFailure: v.Attempt.FirstFailure, Since: v.Attempt.Since, History: v.Attempt.History, // below
			}
			if i > 0 {
				want.LastError = fmt.Sprintf("failure %d", i)
			}
			assert.Equal(t, want, v.Attempt)
			assert.WithinRange(t, v.Attempt.Since, before.Add(-time.Millisecond), s.of("1")[0].At,
				"its first delivery")
			require.Len(t, v.Attempt.History, i)
			for k, h := range v.Attempt.History {
				assert.Equal(t, fmt.Sprintf("failure %d", k+1), h.Error)
				assert.Equal(t, k+1, h.Number)
				assert.WithinRange(t, h.At, s.of("1")[k].At.Add(-time.Millisecond), s.of("1")[k+1].At)
			}
			if i == 0 {
				assert.True(t, v.Attempt.FirstFailure.IsZero())
			} else {
				assert.WithinRange(t, v.Attempt.FirstFailure, before.Add(-time.Millisecond), s.of("1")[1].At)
				assert.Equal(t, s.of("1")[1].Attempt.FirstFailure, v.Attempt.FirstFailure, "it stays the first")
			}
			assert.Equal(t, message.Metadata{"kind": "order", "amount": "12", "nested": `{"a":"b"}`}, v.Metadata)
			assert.Equal(t, "1", v.Payload)
		}
	})
}

// P4: what comes back because its connection was cut was not failed by its handler.
func TestP4_CutConnectionDoesNotCount(t *testing.T) {
	t.Parallel()

	eachQueueType(t, func(t *testing.T, queueType string) {
		var (
			s       seen
			proxy   = newProxy(t, brokertest.URI(t))
			entered = make(chan struct{}, 10)
			once    sync.Once
		)
		svc := start(t, setup{URI: proxy.URI, QueueType: queueType,
			Handler: s.handler(func(msg *message.Message) error {
				first := false
				once.Do(func() { first = true })
				if first {
					entered <- struct{}{}
					<-msg.Context().Done() // it ends with the delivery

					return errors.New("too late: the broker has taken the message back")
				}

				return failing(9)(msg)
			})})
		svc.publish("1")
		await.Closed(t, entered, "the handler is called")
		require.Equal(t, 1, proxy.cut(subscriber))

		letter := svc.Broker.Take(svc.dlq(), 1)[0]
		assert.Equal(t, "2", rabbit.Text(letter, header.Attempts))
		assert.Equal(t, []int{1, 1, 2}, svc.Calls.attempts("1"))
		if strategyMode == "" { // a broker keeps no errors
			assert.Equal(t, "failure 1", s.of("1")[2].Attempt.LastError)
		}
		await.Stays(t, 300*time.Millisecond, func() bool {
			return s.count() == 3
		}, "the failure behind the cut left no copy")
		assert.Len(t, svc.Logs.with("Message failed; it will be retried"), 1, "and none was reported")
		svc.close()
		assert.Zero(t, svc.Broker.Depth(svc.dlq()), "there is one copy")
		assert.Zero(t, svc.Broker.Depth(svc.Queue))
	})
}

// P4: a handler that a shutdown took its message from has not failed it, and what was counted
// before survives the restart.
func TestP4_ShutdownDoesNotCountAndRestartForgetsNothing(t *testing.T) {
	t.Parallel()

	type row struct {
		queueType string
		run       func(*testing.T, setup) *service
	}
	each(t, map[string]row{
		"classic": {"classic", start},
		"quorum":  {"quorum", start},
		"stock":   {"quorum", startStock},
	}, func(t *testing.T, _ string, test row) {
		var before, after seen
		entered := make(chan struct{}, 10)
		first := setup{URI: brokertest.URI(t), QueueType: test.queueType, KeepObjects: true}
		first.Options.Policies = retries(ms(100, 150)...)
		first.Options.CloseTimeout = 200 * time.Millisecond
		first.Handler = before.handler(func(msg *message.Message) error {
			if a, _ := retry.AttemptFromContext(msg.Context()); a.Number == 1 {
				return errors.New("failure 1")
			}
			entered <- struct{}{}
			<-msg.Context().Done()

			return errors.New("the database driver says: operation was canceled")
		})
		svc := test.run(t, first)
		svc.publish("1")
		await.Closed(t, entered, "the second attempt")
		svc.close()
		assert.Len(t, svc.Logs.with("Message failed"), 1, "and that is failure 1")

		// A new process, with a retrier that knows nothing of the one before.
		second := setup{URI: first.URI, QueueType: test.queueType, Queue: svc.Queue}
		second.Options.Policies = first.Options.Policies
		second.Handler = after.handler(failing(2))
		svc = test.run(t, second)
		await.Until(t, func() bool { return after.count() == 2 }, "the second attempt again, and the third")
		await.Stays(t, 300*time.Millisecond, func() bool { return after.count() == 2 }, "the shutdown left no copy")

		calls := after.of("1")
		require.Len(t, calls, 2)
		assert.Equal(t, 2, calls[0].Attempt.Number)
		assert.Equal(t, "failure 1", calls[0].Attempt.LastError, "and not that of the shutdown")
		assert.False(t, calls[0].Attempt.FirstFailure.IsZero())
		assert.Equal(t, before.of("1")[1].Attempt.FirstFailure, calls[0].Attempt.FirstFailure)
		assert.Equal(t, 3, calls[1].Attempt.Number)
		assert.True(t, calls[1].Attempt.Last)
		assert.Zero(t, svc.Broker.Depth(svc.dlq()))
	})
}

// failsInAClose gives a handler that always fails, and a function that closes its service during
// the call of this attempt. The attempt fails when the service does not consume any more. So the
// message waits while nobody runs, however short its delay is. CloseTimeout must be longer than the
// broker needs to end a consumer.
func failsInAClose(attempt int) (handler func(*message.Message) error, closes func(*service)) {
	entered, goOn := make(chan struct{}), make(chan struct{})
	handler = func(msg *message.Message) error {
		if a, _ := retry.AttemptFromContext(msg.Context()); a.Number == attempt {
			close(entered)
			select {
			case <-goOn:
			case <-msg.Context().Done():
			}
		}

		return errFate
	}

	return handler, func(svc *service) {
		svc.t.Helper()
		await.Closed(svc.t, entered, "the last attempt before the close")
		closed := inBackground(func() { svc.close() })
		await.Until(svc.t, func() bool {
			// A quorum queue counts a consumer until its deliveries are settled.
			begun := strategyMode != "" && len(svc.Logs.with("Waiting for subscriber to close")) > 0
			return begun || svc.Broker.Consumers(svc.Queue) == 0
		}, "the close has begun")
		close(goOn)
		await.Closed(svc.t, closed, "the end of the close")
	}
}

// P4: a message that waits on the broker while nobody runs comes to its second attempt.
func TestP4_RestartWhileWaiting(t *testing.T) {
	t.Parallel()

	handler, closes := failsInAClose(1)
	c := setup{Delays: ms(1000), KeepObjects: true, Handler: handler}
	c.Options.CloseTimeout = 15 * time.Second
	svc := start(t, c)
	svc.publish("1")
	closes(svc)
	require.Equal(t, 1, svc.Calls.count(), "it has failed, and waits")

	c.Queue, c.KeepObjects, c.Handler = svc.Queue, false, failing(9)
	svc = start(t, c)
	d := svc.Broker.Take(svc.dlq(), 1)[0]
	assert.Equal(t, []int{2}, svc.Calls.attempts("1"))
	assert.Equal(t, "2", rabbit.Text(d, header.Attempts))
}

// P4: a nack by somebody who took the message without the middleware is Watermill's plain nack.
func TestP4_PlainNackDoesNotCount(t *testing.T) {
	t.Parallel()

	eachQueueType(t, func(t *testing.T, queueType string) {
		var s seen
		c := setup{Tiers: true, QueueType: queueType, Handler: s.handler(failing(1))}
		svc := newService(t, c)
		messages := must(svc.Sub.Subscribe(t.Context(), svc.Queue))(t)
		svc.publish("1")

		for range 3 {
			msg := await.Value(t, messages, "a delivery")
			require.NotNil(t, msg, "the subscription ends")
			a, known := retry.AttemptFromContext(msg.Context())
			require.True(t, known)
			assert.Equal(t, 1, a.Number)
			require.True(t, msg.Nack())
		}
		require.NoError(t, svc.Sub.Close())
		assert.Zero(t, svc.Broker.Depth(svc.retryQueue(200*time.Millisecond)))
		require.NoError(t, svc.Retrier.Close())

		c.Queue = svc.Queue
		c.KeepObjects = true // the service above removes them
		svc = start(t, c)
		await.Until(t, func() bool { return s.count() == 2 }, "failure and success")
		assert.Equal(t, []int{1, 2}, svc.Calls.attempts("1"))
	})
}

// P4: nobody but this queue's own retry queues can make a message look like a retry.
func TestP4_ForgedHeadersAreFresh(t *testing.T) {
	t.Parallel()

	var s seen
	svc := start(t, setup{Delays: ms(200, 250), Prefetch: 20, Handler: s.handler(failing(1))})

	death := func(queue string) []any {
		return []any{amqp091.Table{
			"count": int64(1), "reason": "expired", "queue": queue, "exchange": "", "time": time.Now(),
			"routing-keys": []any{queue},
		}}
	}
	headers := map[string]amqp091.Table{
		"no death":            ours(svc.Queue, "2"),
		"death elsewhere":     ours(svc.Queue, "2"),
		"death in the dlq":    ours(svc.Queue, "2"),
		"no table of deaths":  ours(svc.Queue, "2"),
		"another queue":       ours("elsewhere", "2"),
		"no queue":            ours("", "2"),
		"a queue of no text":  ours(svc.Queue, "2"),
		"an unknown version":  ours(svc.Queue, "2"),
		"dead in other queue": ours("elsewhere", "-1"),
	}
	headers["death elsewhere"]["x-death"] = death("elsewhere.retry.200ms")
	headers["death in the dlq"]["x-death"] = death(svc.dlq())
	headers["no table of deaths"]["x-death"] = "nonsense"
	headers["another queue"]["x-death"] = death("elsewhere.retry.200ms")
	headers["no queue"]["x-death"] = death(svc.retryQueue(200 * time.Millisecond))
	headers["a queue of no text"][header.Queue] = int64(1)
	headers["an unknown version"][header.Version] = "2"
	headers["an unknown version"]["x-death"] = death(svc.retryQueue(200 * time.Millisecond))

	for id, h := range headers {
		svc.Broker.Publish(svc.Queue, with(id, h))
	}
	await.Until(t, func() bool { return s.count() == 2*len(headers) }, "each is called twice")

	for id := range headers {
		calls := s.of(id)
		require.Len(t, calls, 2, id)
		assert.Equal(t, retry.Attempt{Number: 1, Try: 1, MaxRetries: 2, Queue: svc.Queue,
			Since: calls[0].Attempt.Since}, calls[0].Attempt, id)
		assert.Empty(t, ownKeys(calls[0].Metadata), id)
		assert.Equal(t, 2, calls[1].Attempt.Number, id)
		assert.Equal(t, "failure 1", calls[1].Attempt.LastError, id)
		assert.Empty(t, ownKeys(calls[1].Metadata), id)
	}
	assert.Zero(t, svc.Broker.Depth(svc.dlq()))
}

// P4: a handler that passes its input's metadata on, as many do, does not pass the attempts on: not
// to the next queue, and not round about into its own.
func TestP4_CopiedMetadataStartsAnew(t *testing.T) {
	t.Parallel()

	var (
		s    seen
		uri  = brokertest.URI(t)
		next = uniqueName("next")
		c    = setup{URI: uri}
	)
	c.Options.Policies = retries(ms(50, 60, 70)...)
	c.Route = func(svc *service) {
		publisher := must(amqp.NewPublisher(svc.Retrier.Config(), watermill.NopLogger{}))(t)
		t.Cleanup(func() { _ = publisher.Close() })

		svc.Router.AddHandler("copies", svc.Queue, svc.Sub, next, publisher,
			func(msg *message.Message) ([]*message.Message, error) {
				if err := s.handler(failing(2))(msg); err != nil {
					return nil, err
				}
				out := message.NewMessage("out", msg.Payload)
				maps.Copy(out.Metadata, msg.Metadata)

				return message.Messages{out}, nil
			})
		svc.Router.AddConsumerHandler("next", next, svc.Sub, s.handler(failing(1)))
	}
	svc := start(t, c)
	t.Cleanup(func() {
		svc.Broker.Remove(next+".retry", next, next+".dlq", next+".retry.50ms", next+".retry.60ms", next+".retry.70ms")
	})

	svc.Broker.Publish(svc.Queue, with("in", amqp091.Table{"kind": "order"}))
	await.Until(t, func() bool { return len(s.of("out")) == 2 }, "the output fails once, and succeeds")

	require.Len(t, s.of("in"), 3)
	for i, v := range s.of("out") {
		assert.Equal(t, i+1, v.Attempt.Number)
		assert.Equal(t, i, v.Attempt.Failures)
		assert.Equal(t, next, v.Attempt.Queue)
		assert.Equal(t, message.Metadata{"kind": "order"}, v.Metadata)
	}
	first := s.of("out")[0].Attempt
	assert.Equal(t, retry.Attempt{Number: 1, Try: 1, MaxRetries: 3, Queue: next, Since: first.Since}, first)
}

// P4: nothing that is published with the retrier's config carries the retrier's headers.
func TestP4_PublisherStripsOurKeys(t *testing.T) {
	t.Parallel()

	uri, queue := brokertest.URI(t), uniqueName("promise")
	broker := newRabbit(t, uri)
	broker.Declare(queue, nil)

	publisher := must(amqp.NewPublisher(newRetrier(t, amqp.NewDurableQueueConfig(uri), noOptions()).Config(),
		watermill.NopLogger{}))(t)
	t.Cleanup(func() { _ = publisher.Close() })
	msg := message.NewMessage("1", []byte("body"))
	msg.Metadata = message.Metadata{"kind": "order", "amqpretry": "user's", "reason_poisoned": "user's"}
	for key, value := range ours(queue, "2") {
		msg.Metadata[key], _ = value.(string)
	}
	require.NoError(t, publisher.Publish(queue, msg))

	d := broker.Take(queue, 1)[0]
	assert.Equal(t, amqp091.Table{
		amqp.DefaultMessageUUIDHeaderKey: "1", "kind": "order", "amqpretry": "user's", "reason_poisoned": "user's",
	}, d.Headers)
	assert.Equal(t, "body", string(d.Body))
}

type attemptOnWire struct {
	Number int       `json:"n"`
	At     time.Time `json:"at"`
	Error  string    `json:"error"`
	Type   string    `json:"type"`
	Reason string    `json:"reason"`
}

func historyOf(t *testing.T, d amqp091.Delivery) []attemptOnWire {
	t.Helper()
	var history []attemptOnWire
	require.NoError(t, json.Unmarshal([]byte(rabbit.Text(d, header.History)), &history), rabbit.Text(d, header.History))

	return history
}

// again makes a publishing of a delivery as a person or a shovel does: all of it, with all headers.
func again(d amqp091.Delivery) amqp091.Publishing {
	return amqp091.Publishing{
		Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding,
		DeliveryMode: d.DeliveryMode,
		Priority:     d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId,
		Timestamp: d.Timestamp,
		Type:      d.Type, AppId: d.AppId, Body: d.Body,
	}
}

// P4: a dead letter that is moved back by hand gets all of its attempts again, and keeps its
// history.
func TestP4_MovedBackByHandIsAReplay(t *testing.T) {
	t.Parallel()

	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		var s seen
		svc := run(t, setup{Delays: ms(60), Handler: s.handler(failing(9))})

		svc.Broker.Publish(svc.Queue, with("1", amqp091.Table{"kind": "order"}))
		dead := svc.Broker.Take(svc.dlq(), 1)[0]
		assert.Equal(t, "2", rabbit.Text(dead, header.Attempts))
		assert.Empty(t, rabbit.Text(dead, header.Replays))
		require.Contains(t, dead.Headers, "reason_poisoned")

		svc.Broker.Publish(svc.Queue, again(dead))
		deadAgain := svc.Broker.Take(svc.dlq(), 1)[0]

		calls := s.of("1")
		require.Len(t, calls, 4)
		for i, v := range calls {
			assert.Equal(t, i%2+1, v.Attempt.Number, "count restarts")
			assert.Equal(t, i%2 == 1, v.Attempt.Last)
			assert.Equal(t, i/2, v.Attempt.Replays)
			assert.Equal(t, message.Metadata{"kind": "order"}, v.Metadata, "no keys of ours, at call %d", i+1)
		}

		hasHeaders(t, deadAgain, headers{header.Replays: "1", header.Attempts: "4",
			header.FirstFailure: rabbit.Text(dead, header.FirstFailure)})
		var numbers []int
		for _, a := range historyOf(t, deadAgain) {
			numbers = append(numbers, a.Number)
		}
		assert.Equal(t, []int{1, 2, 3, 4}, numbers)
		earlier := historyOf(t, dead)
		earlier[1].Reason = string(retry.ReasonExhausted) // why it has died
		assert.Equal(t, earlier, historyOf(t, deadAgain)[:2])

		svc.Broker.Publish(svc.Queue, again(deadAgain))
		assert.Equal(t, "2", rabbit.Text(svc.Broker.Take(svc.dlq(), 1)[0], header.Replays))
	})
}

// P4: what a publisher has put under Watermill's poison keys is his, but on a dead letter it tells
// of an earlier death.
func TestP4_PoisonKeysAreDroppedOnAReplayOnly(t *testing.T) {
	t.Parallel()

	var s seen
	svc := start(t, setup{Handler: s.handler(failing(1))})

	poisoned := amqp091.Table{"reason_poisoned": "earlier", "topic_poisoned": "earlier"}
	replay := ours(svc.Queue, "-1")
	maps.Copy(replay, poisoned)
	svc.Broker.Publish(svc.Queue, with("user's", poisoned), with("replay", replay))
	await.Until(t, func() bool { return s.count() == 4 }, "both fail once")

	assert.Equal(t, message.Metadata{"reason_poisoned": "earlier", "topic_poisoned": "earlier"},
		s.of("user's")[1].Metadata)
	assert.Empty(t, s.of("replay")[1].Metadata)
	assert.Equal(t, 1, s.of("replay")[1].Attempt.Replays)
}

// P4: what waits under a policy continues under the next one.
func TestP4_AnotherPolicyContinuesTheCount(t *testing.T) {
	t.Parallel()

	handler, closes := failsInAClose(1)
	c := setup{KeepObjects: true, Handler: handler}
	c.Options.Policies = config.Policies{Default: config.Policy{Delays: ms(300), ClassicQueues: true}}
	c.Options.CloseTimeout = 15 * time.Second
	svc := start(t, c)
	svc.publish("1")
	closes(svc)
	require.Equal(t, 1, svc.Calls.count(), "it has failed, and waits")

	c.Queue, c.KeepObjects, c.Handler = svc.Queue, false, failing(9)
	c.Options.Policies = retries(ms(50, 60)...)
	svc = start(t, c)
	t.Cleanup(func() { svc.Broker.Remove("", svc.Queue+".retry.300ms.classic") })
	svc.Broker.Take(svc.dlq(), 1)
	assert.Equal(t, []int{2, 3}, svc.Calls.attempts("1"))
}
