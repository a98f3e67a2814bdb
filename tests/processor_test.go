package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/management"
	"github.com/amqpretry/watermill-retry/amqpretry/processor"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/env"
	"github.com/amqpretry/watermill-retry/internal/testkit/fate"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

// What a consumer in another language rejects is retried after each delay, and ends in the
// dead-letter queue: with the counts, the reason and everything that the message was.
func TestProcessor_RetriesThenDeadLetters(t *testing.T) {
	t.Parallel()
	policies := map[string]config.Policy{
		"tiers":   {Delays: ms(200, 400)},
		"classic": {Delays: ms(200, 400), ClassicQueues: true},
		"shared":  {Delays: ms(200, 400), Strategy: config.StrategyShared},
		"exact":   {Delays: ms(200, 400), Strategy: config.StrategyLadder, Ladder: commonLadder},
		"jitter":  {Delays: ms(200, 400), Jitter: 0.5},
	}
	each(t, policies, func(t *testing.T, _ string, policy config.Policy) {
		broker := newRabbit(t, brokertest.URI(t))
		q := declareForeign(t, broker, uniqueName("proc"))
		options := processor.Options{Policies: config.Policies{Default: policy}}
		options.Names.Shared = uniqueName("proc-shared")
		removeTopology(t, broker, q.Main, options)
		p := process(t, of(t, q), options)
		service := consumeForeign(t, broker, q.Main)

		exchange := uniqueName("proc-exchange")
		bound(t, broker, exchange, "topic", q.Main, "orders.#")
		published := foreign("never-1")
		published.CorrelationId, published.Type, published.AppId = "c-1", "order.created", "shop"
		published.Priority, published.Timestamp = 3, time.Unix(1_700_000_000, 0)
		published.Headers["nested"] = amqp091.Table{"n": int64(1), "list": []any{"a", int32(2)}}
		broker.PublishTo(exchange, "orders.new", foreigns("ok-1", "once-1", "twice-1")...)
		broker.PublishTo(exchange, "orders.new", published)

		letter := broker.Take(q.Main+".dlq", 1)[0]
		await.Until(t, func() bool {
			return service.handled("ok-1")+service.handled("once-1")+service.handled("twice-1") == 3
		}, "the others are handled")
		await.Until(t, func() bool {
			return len(p.Events(retry.EventRetried)) >= 5 && len(p.Events(retry.EventDeadLettered)) > 0
		}, "all copies are confirmed")
		assert.Equal(t, []string{""}, service.counts("ok-1"))
		assert.Equal(t, []string{"", "1"}, service.counts("once-1"))
		assert.Equal(t, []string{"", "1", "2"}, service.counts("twice-1"))
		assert.Equal(t, []string{"", "1", "2"}, service.counts("never-1"))
		deliveries := service.of("never-1")
		if policy.Jitter == 0 {
			assert.GreaterOrEqual(t, deliveries[1].At.Sub(deliveries[0].At), 200*time.Millisecond)
			assert.GreaterOrEqual(t, deliveries[2].At.Sub(deliveries[1].At), 400*time.Millisecond)
		}
		for _, d := range append([]amqp091.Delivery{letter}, deliveries[1].Delivery, deliveries[2].Delivery) {
			assert.Equal(t, published.Body, d.Body)
			assert.Equal(t, []any{"never-1", "c-1", "order.created", "shop", "application/json"},
				[]any{d.MessageId, d.CorrelationId, d.Type, d.AppId, d.ContentType})
			assert.Equal(t, []any{uint8(3), amqp091.Persistent, int64(1_700_000_000)},
				[]any{d.Priority, d.DeliveryMode, d.Timestamp.Unix()})
			assert.Equal(t, published.Headers["nested"], d.Headers["nested"])
			assert.Equal(t, "acme", rabbit.Text(d, "tenant"))
		}
		for key, want := range map[string]string{
			header.Count: "-1", header.Attempts: "3", header.Reason: "rejected", header.Queue: q.Main,
			header.Topic: q.Main, header.Exchange: exchange, header.RoutingKey: "orders.new",
			header.Error:     fmt.Sprintf("rejected by a consumer of queue %q", q.Main),
			header.ErrorType: "*retry.RejectedError", header.UUID: "never-1",
			header.PoisonTopic: q.Main,
		} {
			assert.Equal(t, want, rabbit.Text(letter, key), key)
		}
		assert.Equal(t, 3, strings.Count(rabbit.Text(letter, header.History), `"reason":"rejected"`))
		assert.NotContains(t, letter.Headers, header.Death)
		if broker.AtLeast(4, 0) { // before, each delivery of a quorum queue has one
			assert.NotContains(t, letter.Headers, header.DeliveryCount)
		}

		broker.Has(q.Failed, 0)
		assert.Len(t, p.Events(retry.EventRetried), 5)
		dead := p.Events(retry.EventDeadLettered)
		require.Len(t, dead, 1)
		assert.Equal(t, []any{q.Main, retry.ClassRejected, retry.ReasonRejected, "never-1"},
			[]any{dead[0].Topic, dead[0].Class, dead[0].Verdict.Reason, dead[0].Message.UUID})
		rejected := errorAs[*retry.RejectedError](t, dead[0].Err)
		assert.Equal(t, retry.RejectedError{Queue: q.Main, Reason: retry.ReasonRejected}, *rejected)
	})
}

// Headers of a publisher give a message neither more nor fewer retries.
func TestProcessor_TrustsTheBrokerOnly(t *testing.T) {
	t.Parallel()
	broker, q, _, service := processQueue(t, retries(ms(100, 100)...))

	own := func(count any) amqp091.Table {
		return amqp091.Table{header.Version: "1", header.Queue: q.Main, header.Count: count, header.Delay: "100ms",
			header.Attempts: "7"}
	}
	another := own("2")
	another[header.Queue] = "elsewhere"
	died := func(queue, reason string) amqp091.Table {
		table := own("2")
		table[header.Death] = []any{amqp091.Table{"queue": queue, "reason": reason, "count": int64(1),
			"exchange": "", "routing-keys": []any{"x"}, "time": time.Unix(1_700_000_000, 0)}}
		return table
	}
	forged := map[string]amqp091.Table{
		"never-count":    own("2"),
		"never-huge":     own("1000000000"),
		"never-zero":     own("0"),
		"never-negative": own("-7"),
		"never-number":   own(int64(2)),
		"never-list":     own([]any{"2"}),
		"never-another":  another,
		"never-version":  {header.Version: "99", header.Queue: q.Main, header.Count: "2"},
		"never-death":    died("some.queue", "expired"),
		"never-rejected": died(q.Main, "rejected"),
	}
	if broker.AtLeast(4, 0) { // before, the broker believes a publisher's x-death, and its queues can die of it
		forged["never-waited"] = died(q.Main+".retry.100ms", "expired")
		forged["never-text"] = amqp091.Table{header.Death: "not a list"}
		forged["never-empty"] = amqp091.Table{header.Death: []any{}}
		forged["never-odd"] = amqp091.Table{header.Death: []any{"text", amqp091.Table{"queue": int64(1)}}}
	}
	for id, headers := range forged {
		message := foreign(id)
		message.Headers = headers
		broker.Publish(q.Main, message)
	}

	letters := broker.Take(q.Main+".dlq", len(forged))
	for _, d := range letters {
		// What came with it is nobody's business but the publisher's: the first delivery shows it.
		counts := service.counts(d.MessageId)
		require.Len(t, counts, 3, d.MessageId)
		assert.Equal(t, []string{"1", "2"}, counts[1:], d.MessageId)
		assert.Equal(t, "3", rabbit.Text(d, header.Attempts), d.MessageId)
		assert.Equal(t, "rejected", rabbit.Text(d, header.Reason), d.MessageId)
	}
	broker.Has(q.Failed, 0)
}

// A dead letter that somebody has replayed begins a new life.
func TestProcessor_Replay(t *testing.T) {
	t.Parallel()
	broker, q, _, service := processQueue(t, retries(ms(100)...))
	broker.Publish(q.Main, foreign("never-1"))
	letter := broker.Take(q.Main+".dlq", 1)[0]

	broker.Publish(q.Main, amqp091.Publishing{MessageId: letter.MessageId, Headers: letter.Headers, Body: letter.Body,
		DeliveryMode: amqp091.Persistent})
	letter = broker.Take(q.Main+".dlq", 1)[0]
	assert.Equal(t, []string{"", "1", "-1", "1"}, service.counts("never-1"))
	hasHeaders(t, letter, headers{header.Replays: "1", header.Attempts: "4"})
}

// What the broker itself has taken out of a main queue is not retried.
func TestProcessor_DeathsByTheBroker(t *testing.T) {
	t.Parallel()
	broker := newRabbit(t, brokertest.URI(t))
	expired := declareForeign(t, broker, uniqueName("proc"))
	full := declareForeign(t, broker, uniqueName("proc"), amqp091.Table{
		"x-max-length": int64(1), "x-overflow": "drop-head", "x-dead-letter-strategy": nil})
	limited := declareForeign(t, broker, uniqueName("proc"), amqp091.Table{"x-delivery-limit": int64(2)})
	options := processor.Options{Policies: retries(ms(100)...)}
	for _, q := range []foreignQueue{expired, full, limited} {
		removeTopology(t, broker, q.Main, options)
	}
	process(t, of(t, expired, full, limited), options)

	short := foreign("expired-1")
	short.Expiration = "50"
	broker.Publish(expired.Main, short)
	letter := broker.Take(expired.Main+".dlq", 1)[0]
	hasHeaders(t, letter, headers{header.Reason: "expired", header.Expiration: "50", header.Attempts: "0"})
	assert.Contains(t, rabbit.Text(letter, header.Error), "expired in queue")
	assert.Empty(t, letter.Expiration)

	broker.Publish(full.Main, foreigns("full-1", "full-2")...)
	letter = broker.Take(full.Main+".dlq", 1)[0]
	assert.Equal(t, "full-1", letter.MessageId)
	says(t, letter, "maxlen", "0")
	assert.Contains(t, rabbit.Text(letter, header.Error), "length limit of queue")

	broker.Publish(limited.Main, foreign("limited-1"))
	channel := broker.Channel()
	deliveries := must(channel.Consume(limited.Main, "", false, false, false, false, nil))(t)
	for range 3 {
		d := await.Value(t, deliveries, "a delivery")
		// From 4.3 on a reject counts, and a nack does not.
		require.NoError(t, d.Reject(true))
	}
	letter = broker.Take(limited.Main+".dlq", 1)[0]
	says(t, letter, "delivery-limit", "1")
	assert.Contains(t, rabbit.Text(letter, header.Error), "delivery limit")
}

// A message in a failed queue that its main queue has not put there is a dead letter, and not lost.
func TestProcessor_MessagesOfOtherOrigin(t *testing.T) {
	t.Parallel()
	broker := newRabbit(t, brokertest.URI(t))
	q := declareForeign(t, broker, uniqueName("proc"))
	other := uniqueName("proc-other")
	broker.Declare(other, amqp091.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": q.Failed})
	options := processor.Options{Policies: retries(ms(100)...)}
	removeTopology(t, broker, q.Main, options)
	process(t, of(t, q), options)
	consumeForeign(t, broker, other)

	broker.Publish(q.Failed, foreign("by-hand"))
	letter := broker.Take(q.Main+".dlq", 1)[0]
	assert.Equal(t, []string{"by-hand", "permanent", fmt.Sprintf(
		"the message was published to the failed queue %q and not dead-lettered by a queue", q.Failed)},
		[]string{letter.MessageId, rabbit.Text(letter, header.Reason), rabbit.Text(letter, header.Error)})

	broker.Publish(other, foreign("never-1"))
	letter = broker.Take(q.Main+".dlq", 1)[0]
	assert.Equal(t, []string{"never-1", "permanent"}, []string{letter.MessageId, rabbit.Text(letter, header.Reason)})
	assert.Contains(t, rabbit.Text(letter, header.Error), fmt.Sprintf("by queue %q and not by", other))
	broker.Has(q.Failed, 0)
}

// The policy's age limit and the expiration of a message hold over all retries.
func TestProcessor_Expiry(t *testing.T) {
	t.Parallel()
	broker := newRabbit(t, brokertest.URI(t))
	aged, own := declareForeign(t, broker, uniqueName("proc")), declareForeign(t, broker, uniqueName("proc"))
	options := processor.Options{Policies: config.Policies{
		Default: config.Policy{Delays: ms(300), Retries: 15}, // for longer than a message may live
		Topics:  map[string]config.Policy{aged.Main: {MaxAge: 3 * time.Second}},
	}}
	removeTopology(t, broker, aged.Main, options)
	removeTopology(t, broker, own.Main, options)
	process(t, of(t, aged, own), options)
	service := consumeForeign(t, broker, aged.Main, own.Main)

	message := foreign("never-own")
	message.Expiration = "3000"
	broker.Publish(own.Main, message)
	broker.Publish(aged.Main, foreign("never-aged"))
	for _, q := range []foreignQueue{aged, own} {
		letter := broker.Take(q.Main+".dlq", 1)[0]
		assert.Equal(t, "expired", rabbit.Text(letter, header.Reason), q.Main)
		n := len(service.of(letter.MessageId))
		assert.True(t, n >= 2 && n <= 11, "%s had %d attempts", letter.MessageId, n)
	}
}

// Each topic has its own policy, and policies can change while messages wait.
func TestProcessor_PoliciesChange(t *testing.T) {
	t.Parallel()
	broker := newRabbit(t, brokertest.URI(t))
	q := declareForeign(t, broker, uniqueName("proc"))
	before := processor.Options{Policies: retries(ms(4000, 4000, 4000)...)}
	after := retries(ms(100)...)
	removeTopology(t, broker, q.Main, before)
	removeTopology(t, broker, q.Main, processor.Options{Policies: after})
	p := process(t, of(t, q), before)
	service := consumeForeign(t, broker, q.Main)
	broker.Publish(q.Main, foreign("never-1"))
	broker.Has(q.Main+".retry.4s", 1)

	wrong := config.Policies{Default: config.Policy{Retries: -1}}
	require.Error(t, p.SetPolicies(wrong))
	broken := config.Policies{Default: config.Policy{Delays: ms(100), Strategy: config.StrategyRedelivery}}
	require.ErrorContains(t, p.SetPolicies(broken), "strategy")
	require.NoError(t, p.SetPolicies(after))
	await.Until(t, func() bool { return broker.Depth(q.Main+".retry.100ms") == 0 }, "they are applied")
	p.ready()
	broker.Publish(q.Main, foreign("never-2"))
	letters := []string{}
	for _, letter := range broker.Take(q.Main+".dlq", 2) {
		letters = append(letters, letter.MessageId)
	}
	assert.ElementsMatch(t, []string{"never-1", "never-2"}, letters)
	for id, delay := range map[string]string{"never-1": "4s", "never-2": "100ms"} {
		require.Equal(t, []string{"", "1"}, service.counts(id))
		assert.Equal(t, delay, rabbit.Text(service.of(id)[1].Delivery, header.Delay))
	}
	p.ready()
}

// Failed queues that match a pattern are found while the processor runs, and those that are deleted
// are left.
func TestProcessor_FindsQueues(t *testing.T) {
	t.Parallel()
	broker := newRabbit(t, brokertest.URI(t))
	prefix := uniqueName("proc")
	first := declareForeign(t, broker, prefix+"-first")
	options := processor.Options{PollInterval: 200 * time.Millisecond, Policies: config.Policies{
		Default: config.Policy{Delays: ms(100)},
		Topics:  map[string]config.Policy{prefix + "-off": {Mode: config.ModeOff}},
	}}
	all := []string{first.Failed, first.Main, prefix + "-off.failed", prefix + "-missing.failed"}
	api, management := newListing(t, all...)
	conf := processor.Config{URI: brokertest.URI(t), Match: []string{"*.failed"}, Management: management}
	removeTopology(t, broker, first.Main, options)
	p := process(t, conf, options)
	service := consumeForeign(t, broker, first.Main)
	broker.Publish(first.Main, foreign("once-1"))
	await.Until(t, func() bool { return service.handled("once-1") == 1 }, "a retry")
	require.Len(t, p.Queues(), 2, "the one with policy off is left alone")
	missing := p.Queues()[1]
	assert.Equal(t, prefix+"-missing.failed", missing.Name)
	await.Until(t, func() bool { return p.Queues()[1].Err != nil }, "its main queue is missing")
	assert.ErrorContains(t, p.Queues()[1].Err, fmt.Sprintf("main queue %q does not exist", prefix+"-missing"))

	second := declareForeign(t, broker, prefix+"-second")
	removeTopology(t, broker, second.Main, options)
	api.set(first.Failed, second.Failed)
	service2 := consumeForeign(t, broker, second.Main)
	broker.Publish(second.Main, foreign("once-2"))
	await.Until(t, func() bool { return service2.handled("once-2") == 1 }, "a new queue is processed")
	await.Until(t, func() bool { return len(p.Queues()) == 2 }, "the missing one is forgotten")
	assert.True(t, p.Queues()[0].Consuming && p.Queues()[1].Consuming)

	api.fail(true)
	await.Until(t, func() bool { return len(p.Logs.with("Cannot list the queues")) == 1 }, "it says so")
	await.Stays(t, time.Second, func() bool { return p.Ready() == nil }, "known queues go on")
	api.fail(false)

	broker.Remove("", first.Failed)
	api.set(second.Failed)
	await.Until(t, func() bool {
		return len(p.Queues()) == 1 && p.Queues()[0].MainQueue == second.Main && p.Ready() == nil
	}, "a deleted queue is left")
	api.set()
	await.Until(t, func() bool { return broker.Consumers(second.Failed) == 0 }, "it is left")
	await.Until(t, func() bool { return len(p.Queues()) == 0 }, "it is forgotten")
	assert.Len(t, p.Logs.with("Cannot list the queues"), 1)
	assert.Empty(t, p.Events(retry.EventDisconnected), "a deleted queue costs the others nothing")
}

// A listed queue that is not there yet is waited for; until then the processor is not ready.
func TestProcessor_WaitsForQueues(t *testing.T) {
	t.Parallel()
	broker := newRabbit(t, brokertest.URI(t))
	main := uniqueName("proc")
	q := foreignQueue{main, main + ".failed"}
	options := processor.Options{PollInterval: 200 * time.Millisecond, Policies: retries(ms(100)...)}
	p := newProcessor(t, of(t, q), options)
	require.ErrorContains(t, p.Ready(), "does not run yet")
	p.run()
	await.Until(t, func() bool { return len(p.Queues()) == 1 && p.Queues()[0].Err != nil }, "an error")
	require.ErrorContains(t, p.Ready(), fmt.Sprintf("main queue %q does not exist", main))

	declareForeign(t, broker, main)
	removeTopology(t, broker, main, options)
	p.ready()
	assert.Equal(t, []processor.Status{{Queue: processor.Queue{Name: q.Failed, MainQueue: main},
		Consuming: true}}, p.Queues())
	assert.Len(t, p.Logs.with("Cannot consume from a failed queue"), 1)

	broker.Publish(main, foreigns("a", "b")...)
	broker.Publish(main+".dlq", foreign("c"))
	broker.Has(main+".dlq", 1)
	var depths []retry.QueueDepth
	await.Until(t, func() bool { // a broker that is busy says 0 of a quorum queue
		depths = must(p.QueueDepths(t.Context()))(t)
		return depths[0].Messages > 0
	}, "the depth of the dead-letter queue")
	assert.Equal(t, []retry.QueueDepth{
		{Queue: main + ".dlq", Role: retry.QueueRoleDeadLetter, MainQueue: main, Messages: 1},
		{Queue: q.Failed, Role: retry.QueueRoleFailed, MainQueue: main},
		{Queue: main + ".retry.100ms", Role: retry.QueueRoleRetry, MainQueue: main, Wait: 100 * time.Millisecond},
	}, depths)

	p.stop()
	require.Error(t, p.Ready())
	require.NoError(t, p.Close())
	require.Error(t, p.Run(t.Context()), "it cannot run twice")
}

// A retry topology that somebody deletes comes back with the next failure.
func TestProcessor_RepairsTopology(t *testing.T) {
	t.Parallel()
	broker, q, p, service := processQueue(t, retries(ms(100)...))
	broker.Remove(q.Main+".retry", q.Main+".retry.100ms", q.Main+".dlq")
	broker.Publish(q.Main, foreigns("once-1", "never-1")...)
	await.Until(t, func() bool { return service.handled("once-1") == 1 }, "a retry")
	broker.Take(q.Main+".dlq", 1)
	assert.NotEmpty(t, p.Events(retry.EventTopologyRepaired))
}

// Shutdowns at any moment, with others beside, lose no message and double none.
func TestProcessor_GracefulClose(t *testing.T) {
	t.Parallel()
	policies := retries(ms(100, 200)...)
	broker, q, _, service := processQueue(t, policies)
	ids := rabbit.Numbered("twice", 1000)
	dead := rabbit.Numbered("never", 500)
	done := make(chan struct{})
	go func() {
		defer close(done)
		broker.Publish(q.Main, foreigns(slices.Concat(ids, dead)...)...)
	}()
	for closes := 0; ; closes++ {
		select {
		case <-done:
			done = nil
		default:
		}
		if done == nil && closes > 10 {
			t.Logf("%d closes", closes)
			break
		}
		other := process(t, of(t, q), processor.Options{Policies: policies})
		<-time.After(time.Duration(rand.IntN(150)) * time.Millisecond)
		other.stop()
	}

	found := map[string]int{}
	for _, d := range broker.Take(q.Main+".dlq", len(dead)) {
		found[d.MessageId]++
	}
	for _, id := range dead {
		assert.Equal(t, 1, found[id], id)
		assert.Equal(t, []string{"", "1", "2"}, service.counts(id), id)
	}
	await.Until(t, func() bool {
		return !slices.ContainsFunc(ids, func(id string) bool { return service.handled(id) == 0 })
	}, "all are handled")
	for _, id := range ids {
		assert.Equal(t, []string{"", "1", "2"}, service.counts(id), id)
	}
	broker.Has(q.Main+".dlq", 0)
	broker.Has(q.Failed, 0)
}

// Many queues are consumed from within seconds, over one connection. QUEUES says how many.
func TestProcessor_ManyQueues(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("declares many queues")
	}
	queues := env.Int(t, "QUEUES", 120)
	broker := newRabbit(t, brokertest.URI(t))
	prefix := uniqueName("proc-many")
	options := processor.Options{Policies: config.Policies{
		Default: config.Policy{Delays: ms(300), Strategy: config.StrategyShared},
	}}
	options.Names.Shared = prefix + "-shared"
	// Classic queues: the test is about the processor, and the broker starts a cluster for each
	// quorum queue.
	conf, mains := of(t), []string{}
	t.Cleanup(func() {
		_ = broker.Try(func(c *amqp091.Channel) error {
			for _, main := range mains {
				for _, queue := range []string{main, main + ".failed", main + ".dlq"} {
					if _, err := c.QueueDelete(queue, false, false, false); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
	broker.Do(func(c *amqp091.Channel) error {
		for i := range queues {
			main := fmt.Sprintf("%s-%d", prefix, i)
			mains = append(mains, main)
			conf.Queues = append(conf.Queues, processor.Queue{Name: main + ".failed", MainQueue: main})
			if _, err := c.QueueDeclare(main+".failed", true, false, false, false, nil); err != nil {
				return err
			}
			if _, err := c.QueueDeclare(main, true, false, false, false, amqp091.Table{
				"x-dead-letter-exchange": "", "x-dead-letter-routing-key": main + ".failed"}); err != nil {
				return err
			}
		}
		return nil
	})
	removeTopology(t, broker, mains[0], options)
	process(t, conf, options).stop() // declares what is new

	options.PollInterval = 5 * time.Minute // and no second look at what could not be consumed from
	began := time.Now()
	p := process(t, conf, options)
	t.Logf("%d queues: ready after %s", queues, time.Since(began))
	assert.Less(t, time.Since(began), time.Minute)
	assert.Empty(t, p.Logs.with("Cannot consume from a failed queue"))
	connections := map[string]int{}
	for _, e := range p.Events(retry.EventConnected) {
		connections[e.Connection]++
	}
	assert.Equal(t, 1, connections["processor"])

	service := consumeForeign(t, broker, mains...)
	broker.Do(func(c *amqp091.Channel) error {
		for _, main := range mains {
			if err := c.Publish("", main, true, false, foreign("once-"+main)); err != nil {
				return err
			}
		}
		return nil
	})
	await.Until(t, func() bool {
		return !slices.ContainsFunc(mains, func(main string) bool { return service.handled("once-"+main) != 1 })
	}, "one retry in each queue")
}

// A broker that is restarted, or killed, costs no message.
func TestProcessor_BrokerRestart_OwnBroker(t *testing.T) {
	t.Parallel()
	own := brokertest.StartWithManagement(t, brokertest.ConfirmTimeout(t, 5*time.Second))
	broker := newRabbit(t, own.URI)
	q := declareForeign(t, broker, "orders")
	options := processor.Options{PollInterval: time.Second, Policies: retries(ms(500, 1000)...)}
	conf := processor.Config{URI: own.URI, Match: []string{"*.failed"}}
	conf.Management.URL = own.ManagementURL
	p := process(t, conf, options)

	ids := slices.Concat(rabbit.Numbered("never", 300), rabbit.Numbered("once", 300))
	broker.Publish(q.Main, foreigns(ids...)...)
	for i, end := range []func(){own.Stop, own.Kill} {
		channel := broker.Channel()
		require.NoError(t, channel.Qos(20, 0, false))
		deliveries := must(channel.Consume(q.Main, "", false, false, false, false, nil))(t)
		for range 100 {
			require.NoError(t, await.Value(t, deliveries, "a delivery").Nack(false, false))
		}
		end()
		await.Until(t, func() bool { return p.Ready() != nil }, "not ready without a broker (%d)", i)
		own.Start()
		p.ready()
	}

	service := consumeForeign(t, broker, q.Main)
	letters := map[string]bool{}
	await.Until(t, func() bool {
		for _, d := range broker.Drain(q.Main + ".dlq") {
			letters[d.MessageId] = true
			assert.Equal(t, "rejected", rabbit.Text(d, header.Reason))
		}
		return !slices.ContainsFunc(ids, func(id string) bool { return !letters[id] && service.handled(id) == 0 })
	}, "each message is handled or a dead letter")
	broker.Has(q.Failed, 0)
}

// The documented permissions are enough, and with any name less something is refused and says so.
func TestProcessor_Permissions_OwnBroker(t *testing.T) {
	t.Parallel()
	page := must(os.ReadFile("../docs/how-to/serve-other-languages.md"))(t)
	line := regexp.MustCompile(`(?m)^rabbitmqctl set_permissions -p / processor '(.*)' '(.*)' '(.*)'$`).
		FindStringSubmatch(string(page))
	require.NotNil(t, line)
	all := permissions{line[1], line[2], line[3]}
	own := brokertest.Shared(t)
	operator := &obsoleteBroker{broker: own}

	life := func(t *testing.T, p permissions) *processed {
		t.Helper()
		vhost := uniqueName("v")
		operator.put(t, `{}`, "vhosts", vhost)
		operator.put(t, `{"password": "secret", "tags": "management"}`, "users", vhost)
		operator.permit(t, vhost, vhost, p[0], p[1], p[2])
		operator.permit(t, vhost, "guest", ".*", ".*", ".*")
		uri := must(url.Parse(own.URI))(t)
		uri.Path = "/" + vhost
		broker := newRabbit(t, uri.String())
		q := declareForeign(t, broker, "orders")
		consumeForeign(t, broker, q.Main)
		uri.User = url.UserPassword(vhost, "secret")
		management := must(url.Parse(own.ManagementURL))(t)
		management.User = uri.User
		conf := processor.Config{URI: uri.String(), Match: []string{"*.failed"}}
		conf.Management.URL = management.String()
		r := newProcessor(t, conf, processor.Options{Policies: retries(ms(50)...),
			PollInterval: 200 * time.Millisecond, CloseTimeout: time.Second})
		r.run()
		broker.Publish(q.Main, foreign("never-1"))

		return r
	}
	t.Run("enough", func(t *testing.T) {
		t.Parallel()
		p := life(t, all)
		dead := func() bool { return len(p.Events(retry.EventDeadLettered)) == 1 }
		await.Until(t, dead, "a dead letter")
		assert.Len(t, p.Events(retry.EventRetried), 1)
	})
	for missing, p := range all.narrowed(t) {
		t.Run("without "+missing, func(t *testing.T) {
			t.Parallel()
			r := life(t, p)
			await.Until(t, func() bool {
				var refused *amqp091.Error
				for _, e := range r.Events(retry.EventHeld) {
					if errors.As(e.Err, &refused) && refused.Code == amqp091.AccessRefused {
						return true
					}
				}
				queues := r.Queues()
				return len(queues) == 1 && errors.As(queues[0].Err, new(*topology.AccessError))
			}, "it is refused")
			assert.Empty(t, r.Events(retry.EventDeadLettered))
		})
	}
}

const unlimitedDeliveries = int64(2147483647)

// foreignQueue is a main queue of a service in another language: it dead-letters to its failed
// queue.
type foreignQueue struct{ Main, Failed string }

// declareForeign declares a quorum main queue and its failed queue, with further arguments of the
// main queue. They are removed when the test ends, with all that the default names call theirs.
func declareForeign(t *testing.T, broker *rabbit.Client, main string, arguments ...amqp091.Table) foreignQueue {
	t.Helper()

	return declareForeignTo(t, broker, main, main+".failed", arguments...)
}

func declareForeignTo(
	t *testing.T, broker *rabbit.Client, main, failed string, arguments ...amqp091.Table,
) foreignQueue {
	t.Helper()
	q := foreignQueue{Main: main, Failed: failed}
	own := amqp091.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": q.Failed,
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	}
	for _, more := range arguments {
		for key, value := range more {
			if own[key] = value; value == nil {
				delete(own, key)
			}
		}
	}
	broker.Declare(q.Failed, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": unlimitedDeliveries})
	broker.Declare(q.Main, own)

	return q
}

// foreigner consumes from main queues as a service in another language does: it acknowledges or
// rejects, as the fate of a message says, and knows nothing of retries.
type foreigner struct {
	mu   sync.Mutex
	seen map[string][]sighting // by message id
}

type sighting struct {
	At       time.Time
	Count    string // the header; empty without one
	Headers  amqp091.Table
	Delivery amqp091.Delivery
}

func consumeForeign(t *testing.T, broker *rabbit.Client, queues ...string) *foreigner {
	t.Helper()
	f := &foreigner{seen: map[string][]sighting{}}
	connection := broker.Dial()
	for _, queue := range queues {
		channel := must(connection.Channel())(t)
		require.NoError(t, channel.Qos(20, 0, false))
		deliveries := must(channel.Consume(queue, "", false, false, false, false, nil))(t)
		go f.consume(deliveries)
	}

	return f
}

func (f *foreigner) consume(deliveries <-chan amqp091.Delivery) {
	for d := range deliveries {
		count := rabbit.Text(d, header.Count)
		failures, _ := strconv.Atoi(count)
		f.mu.Lock()
		f.seen[d.MessageId] = append(f.seen[d.MessageId], sighting{time.Now(), count, d.Headers, d})
		f.mu.Unlock()
		if fate.Of(d.MessageId).Fails(max(failures, 0) + 1) {
			_ = d.Nack(false, false)
		} else {
			_ = d.Ack(false)
		}
	}
}

func (f *foreigner) of(id string) []sighting {
	f.mu.Lock()
	defer f.mu.Unlock()

	return append([]sighting(nil), f.seen[id]...)
}

func (f *foreigner) counts(id string) []string {
	var counts []string
	for _, s := range f.of(id) {
		counts = append(counts, s.Count)
	}

	return counts
}

func (f *foreigner) handled(id string) int {
	n := 0
	for _, s := range f.of(id) {
		failures, _ := strconv.Atoi(s.Count)
		if !fate.Of(id).Fails(max(failures, 0) + 1) {
			n++
		}
	}

	return n
}

func foreign(id string) amqp091.Publishing {
	return amqp091.Publishing{
		DeliveryMode: amqp091.Persistent, MessageId: id, ContentType: "application/json", Body: []byte(`{"id":"` + id +
			`"}`), Headers: amqp091.Table{"tenant": "acme"},
	}
}

func foreigns(ids ...string) []amqp091.Publishing {
	messages := make([]amqp091.Publishing, len(ids))
	for i, id := range ids {
		messages[i] = foreign(id)
	}

	return messages
}

type processed struct {
	*processor.Processor
	Logs *logs

	t      *testing.T
	cancel context.CancelFunc
	ended  chan error

	events records[retry.Event]
}

func newProcessor(t *testing.T, conf processor.Config, options processor.Options) *processed {
	t.Helper()
	p := &processed{t: t, Logs: newLogs(t), ended: make(chan error, 1)}
	options.Logger = p.Logs
	then := options.OnEvent
	options.OnEvent = func(e retry.Event) {
		p.events.put(e)
		if then != nil {
			then(e)
		}
	}
	if options.HoldWarning == 0 {
		options.HoldWarning = 300 * time.Millisecond
	}
	p.Processor = must(processor.New(conf, options))(t)

	return p
}

func processQueue(t *testing.T, policies config.Policies) (*rabbit.Client, foreignQueue, *processed, *foreigner) {
	t.Helper()
	broker := newRabbit(t, brokertest.URI(t))
	q := declareForeign(t, broker, uniqueName("proc"))
	options := processor.Options{Policies: policies}
	removeTopology(t, broker, q.Main, options)

	return broker, q, process(t, of(t, q), options), consumeForeign(t, broker, q.Main)
}

func says(t *testing.T, letter amqp091.Delivery, reason, attempts string) {
	t.Helper()
	hasHeaders(t, letter, headers{header.Reason: reason, header.Attempts: attempts})
}

func process(t *testing.T, conf processor.Config, options processor.Options) *processed {
	t.Helper()
	p := newProcessor(t, conf, options)
	p.run()
	p.ready()

	return p
}

func (p *processed) run() {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() { p.ended <- p.Run(ctx) }()
	p.t.Cleanup(func() {
		if p.t.Failed() {
			p.t.Logf("readiness: %v", p.Ready())
		}
		require.NoError(p.t, p.Close())
	})
}

// Ready returns why it is not.
func (p *processed) Ready() error {
	var errs []error
	for _, problem := range p.Health().Problems {
		assert.NotEqual(p.t, retry.ProblemProgress, problem.Kind)
		if problem.NotReady {
			errs = append(errs, errors.New(problem.Text))
		}
	}

	return errors.Join(errs...)
}

func (p *processed) ready() {
	p.t.Helper()
	await.Until(p.t, func() bool { return p.Ready() == nil }, "the processor is ready")
}

func (p *processed) stop() {
	p.t.Helper()
	p.cancel()
	require.NoError(p.t, await.Value(p.t, p.ended, "the end of the processor"))
}

func (p *processed) Events(kind retry.EventKind) []retry.Event {
	return p.events.where(func(e retry.Event) bool { return e.Kind == kind })
}

// of is the config of a processor of some queues on the shared broker.
func of(t *testing.T, queues ...foreignQueue) processor.Config {
	t.Helper()
	conf := processor.Config{URI: brokertest.URI(t)}
	for _, q := range queues {
		conf.Queues = append(conf.Queues, processor.Queue{Name: q.Failed, MainQueue: q.Main})
	}

	return conf
}

func removeTopology(t *testing.T, broker *rabbit.Client, main string, options processor.Options) {
	t.Helper()
	plan := must(topology.New(main, options.Policies.For(main), options.Names))(t)
	t.Cleanup(func() { broker.RemovePlan(plan) })
}

// listing is a management API that lists queues, and nothing else.
type listing struct {
	mu    sync.Mutex
	names []string
	down  bool
}

func newListing(t *testing.T, names ...string) (*listing, management.API) {
	t.Helper()
	l := &listing{names: names}
	server := httptest.NewServer(l)
	t.Cleanup(server.Close)

	return l, management.API{URL: server.URL, VHost: "/"}
}

func (l *listing) set(names ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names = names
}

func (l *listing) fail(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
}

func (l *listing) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if l.down {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"error":"down","reason":"starting"}`))

		return
	}
	type queue struct {
		Name  string `json:"name"`
		VHost string `json:"vhost"`
		Type  string `json:"type"`
	}
	items := []queue{}
	for _, name := range l.names {
		items = append(items, queue{name, "/", "quorum"})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"items": items, "page_count": 1})
}
