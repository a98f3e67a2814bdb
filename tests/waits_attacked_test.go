package tests

import (
	"errors"
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
