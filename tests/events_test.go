package tests

import (
	"context"
	"os"
	"regexp"
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
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// told gives the events of one message, as one line.
func (s *service) told(id string) string {
	var kinds []string
	for _, e := range s.Events() {
		if e.Message != nil && e.Message.UUID == id {
			kinds = append(kinds, string(e.Kind))
		}
	}

	return strings.Join(kinds, " ")
}

// documentedEvents reads the table of the docs: the events of a message, by what happens to it.
func documentedEvents(t *testing.T) map[string]string {
	t.Helper()
	text := must(os.ReadFile("../docs/reference/events.md"))(t)
	_, table, found := strings.Cut(string(text), "<!-- sequences -->\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")

	sequences := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(table), "\n")[2:] {
		cells := strings.Split(strings.Trim(line, "| "), "|")
		require.Len(t, cells, 2, line)
		sequences[strings.TrimSpace(cells[0])] = strings.NewReplacer("`", "", "→ ",
			"").Replace(strings.TrimSpace(cells[1]))
	}

	return sequences
}

// What the docs say of the events of a message is what happens, on both subscribers.
func TestEvents_OfAMessage(t *testing.T) {
	t.Parallel()

	documented := documentedEvents(t)
	handler := func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		first := attempt.Calls == 0

		switch msg.UUID {
		case "fails once, then succeeds":
			if first {
				return errFate
			}
		case "fails for good", "panics for good":
			if msg.UUID == "panics for good" {
				panic("at the disco")
			}

			return errFate
		case "is permanent":
			return retry.Permanent(errFate)
		case "is dropped":
			return retry.Drop(errFate)
		case "is postponed, then succeeds":
			if first {
				return retry.Postpone(100 * time.Millisecond)
			}
		}

		return nil
	}

	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		c := setup{Delays: ms(100), Handler: handler}
		c.Configure = func(conf *amqp.Config) { conf.Marshaler = picky{} }
		began := time.Now()
		svc := run(t, c)

		here := []string{
			"succeeds", "fails once, then succeeds", "fails for good", "panics for good", "is permanent",
			"is dropped",
			"is postponed, then succeeds",
		}
		svc.publish(here...)
		here = append(here, "cannot be decoded")
		svc.Broker.Publish(svc.Queue, amqp091.Publishing{Body: []byte("reject"), MessageId: "cannot be decoded"})

		for _, id := range here {
			require.Contains(t, documented, id)
			await.Until(t, func() bool { return svc.told(id) == documented[id] }, "%s: %s", id, documented[id])
		}
		svc.close()
		for _, id := range here {
			assert.Equal(t, documented[id], svc.told(id), id)
		}

		for _, e := range svc.Events(retry.EventCall, retry.EventSucceeded, retry.EventFailed,
			retry.EventDeadLettered) {
			assert.Equal(t, []string{svc.Queue, svc.Queue}, []string{e.Topic, e.Queue}, e.Kind)
			if e.Message.UUID != "cannot be decoded" {
				// which the stock subscriber hands to the router all the same
				assert.True(t, strings.HasPrefix(e.Handler, "handler-"))
			}
			assert.False(t, e.At.IsZero())
		}
		for _, e := range svc.Events(retry.EventRetried) {
			assert.Equal(t, 100*time.Millisecond, e.Verdict.Delay)
			assert.Positive(t, e.Took)
			assert.Less(t, e.Took, e.At.Sub(began))
		}
		dead := svc.Events(retry.EventDeadLettered)
		require.Len(t, dead, 4)
		for _, e := range dead {
			if e.Message.UUID == "cannot be decoded" {
				assert.Equal(t, "reject", string(e.Message.Payload), "what could be made of it")
				assert.Equal(t, retry.ReasonUndecodable, e.Verdict.Reason)
			}
		}
	})
}

// The rest of the table needs other policies, and faults.
func TestEvents_OfOtherMessages(t *testing.T) {
	t.Parallel()

	documented := documentedEvents(t)
	matches := func(t *testing.T, svc *service, id string) {
		t.Helper()
		require.Contains(t, documented, id)
		await.Until(t, func() bool { return svc.told(id) == documented[id] }, "%s: %s", id, documented[id])
	}

	t.Run("immediate", func(t *testing.T) {
		t.Parallel()
		const id = "fails, and succeeds when tried again at once"
		c := setup{Handler: func(msg *message.Message) error {
			if attempt, _ := retry.AttemptFromContext(msg.Context()); attempt.Try == 1 {
				return errFate
			}

			return nil
		}}
		c.Options.Policies = config.Policies{Default: config.Policy{Immediate: 1, Delays: ms(100)}}
		svc := start(t, c)
		svc.publish(id)
		matches(t, svc, id)
	})

	t.Run("expired", func(t *testing.T) {
		t.Parallel()
		const id = "has expired"
		goOn := make(chan struct{})
		c := setup{Handler: func(*message.Message) error { <-goOn; return nil }}
		c.Options.Policies = config.Policies{Default: config.Policy{Delays: ms(100), MaxAge: time.Hour}}
		svc := start(t, c)
		// A timestamp has whole seconds, and counts as its last moment. The message before it counts from its arrival.
		expires := time.Now().Truncate(time.Second).Add(time.Second)
		m := rabbit.Message(id, id)
		m.Timestamp = expires.Add(-time.Second - time.Hour)
		svc.publish("before it")
		svc.Broker.Publish(svc.Queue, m)
		await.Until(t, func() bool { return svc.Calls.count() == 1 }, "the one before it is handled")
		await.Until(t, func() bool { return time.Now().After(expires) }, "meanwhile")
		close(goOn)
		matches(t, svc, id)
	})

	t.Run("unpublishable", func(t *testing.T) {
		t.Parallel()
		const id = "has outputs that cannot be published"
		c := setup{URI: brokertest.URI(t)}
		c.Options.Policies = config.Policies{Default: config.Policy{Mode: config.ModeDeadLetter}}
		c.Route = func(s *service) {
			s.Router.AddHandler("handler", s.Queue, s.Sub, "out", refusing{},
				func(msg *message.Message) ([]*message.Message, error) {
					return message.Messages{msg.Copy()}, nil
				})
		}
		svc := start(t, c)
		svc.publish(id)
		matches(t, svc, id)
		assert.Equal(t, retry.ReasonUnpublishable, svc.Letters()[0].Verdict.Reason)
	})

	t.Run("shutdown", func(t *testing.T) {
		t.Parallel()
		const id = "is taken away by a shutdown"
		c := setup{Handler: func(msg *message.Message) error {
			<-msg.Context().Done()
			return msg.Context().Err()
		}}
		c.Options.CloseTimeout = 300 * time.Millisecond
		svc := start(t, c)
		svc.publish(id)
		await.Until(t, func() bool { return svc.Calls.count() == 1 }, "it is handled")
		svc.close()
		matches(t, svc, id)
	})

	t.Run("abandoned", func(t *testing.T) {
		t.Parallel()
		const id = "fails, and its connection is lost before the copy is confirmed"
		network := newProxy(t, brokertest.URI(t))
		c := setup{URI: network.URI, QueueType: "quorum", Handler: alwaysFails}
		c.Options.Policies = config.Policies{Default: config.Policy{Mode: config.ModeDeadLetter}}
		svc := start(t, c)
		network.refuse(forwarder)
		svc.publish(id)
		await.Until(t, func() bool { return len(svc.Held()) > 0 }, "it is held")
		network.cut(subscriber)
		await.Until(t, func() bool { return svc.Calls.count() == 2 }, "it is delivered again")
		network.allow(forwarder)
		matches(t, svc, id)
		assert.ErrorContains(t, svc.Events(retry.EventAbandoned)[0].Err, "deliver the message again")
	})
}

// outside adds a middleware outside of the retry middleware.
func outside(m message.HandlerMiddleware, handler func(*message.Message) error) func(*service) {
	return func(s *service) {
		bare(s.t, s, m, s.Retrier.Middleware)
		s.Router.AddConsumerHandler(uniqueName("handler"), s.Queue, s.Sub, s.recorded(handler))
	}
}

// Whatever is still under way when a close has waited long enough: what was begun has an end, and nothing begins.
func TestEvents_OfAClose(t *testing.T) {
	t.Parallel()

	t.Run("outside of the middleware", func(t *testing.T) {
		t.Parallel()
		reached, goOn := make(chan struct{}), make(chan struct{})
		c := setup{URI: brokertest.URI(t)}
		c.Options.CloseTimeout = 300 * time.Millisecond
		c.Route = outside(func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				produced, err := h(msg)
				close(reached)
				<-goOn

				return produced, err
			}
		}, byFate)
		svc := start(t, c)
		svc.publish("never-0")
		await.Closed(t, reached, "it has failed")
		require.NoError(t, svc.Retrier.Close())
		close(goOn)
		svc.close()
		assert.Equal(t, "call failed abandoned", svc.told("never-0"))
	})

	t.Run("between immediate tries", func(t *testing.T) {
		t.Parallel()
		asked, goOn := make(chan struct{}), make(chan struct{})
		c := setup{Handler: failing(9)}
		c.Options.Policies = config.Policies{Default: config.Policy{Immediate: 2, Delays: ms(100)}}
		c.Options.CloseTimeout = 300 * time.Millisecond
		c.Options.Decide = func(f retry.Failure) error {
			close(asked)
			<-goOn

			return f.Err
		}
		svc := start(t, c)
		svc.publish("1")
		await.Closed(t, asked, "it has failed")
		require.NoError(t, svc.Retrier.Close())
		close(goOn)
		svc.close()
		assert.Equal(t, "call requeued", svc.told("1"))
		assert.Equal(t, 1, svc.Calls.count(), "its message is the broker's again")
	})

	t.Run("in the handler, which works on its message", func(t *testing.T) {
		t.Parallel()
		stop, stopped := make(chan struct{}), make(chan struct{})
		c := setup{Handler: func(msg *message.Message) error {
			defer close(stopped)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return nil
				case <-time.After(time.Millisecond):
					msg.SetContext(context.WithoutCancel(msg.Context()))
					msg.Metadata["n"] = strconv.Itoa(i)
				}
			}
		}}
		c.Options.CloseTimeout = 300 * time.Millisecond
		c.Options.OnEvent = func(e retry.Event) {
			if e.Message != nil {
				_ = e.Message.Metadata.Get("n") // the race detector is the judge
			}
		}
		svc := start(t, c)
		svc.publish("1")
		await.Until(t, func() bool { return svc.Calls.count() == 1 }, "it is handled")
		require.NoError(t, svc.Retrier.Close())
		close(stop)
		<-stopped
		svc.close()
		assert.Equal(t, "call requeued", svc.told("1"))
	})
}

// Two middlewares around a handler on a stock subscriber: what the inner one could not settle is no failure for the outer one.
func TestEvents_OfNestedMiddlewares(t *testing.T) {
	t.Parallel()

	var calls, asked atomic.Int32
	c := setup{Handler: func(*message.Message) error {
		if calls.Add(1) == 1 {
			return errFate
		}

		return nil
	}}
	c.Options.Decide = func(f retry.Failure) error {
		asked.Add(1)
		// requeued at once. From the handler it could also be taken for a shutdown, which a stock subscriber's nack
		// looks like
		f.Message.Nack()

		return f.Err
	}
	svc := newStock(t, c)
	svc.Router.AddMiddleware(svc.Retrier.Poison)
	svc.run()
	svc.publish("1")
	// The broker delivers it again while the first attempt is still being told of.
	told := func() []string { return slices.Sorted(slices.Values(strings.Fields(svc.told("1")))) }
	expected := []string{"abandoned", "call", "call", "failed", "succeeded"}
	await.Until(t, func() bool { return slices.Equal(expected, told()) }, "%v", expected)
	svc.close()
	assert.Equal(t, expected, told())
	assert.EqualValues(t, 1, asked.Load())
}

// A message that is not due yet has not expired.
func TestEvents_OfWaiting(t *testing.T) {
	t.Parallel()

	svc := start(t, setup{Delays: ms(500), Tiers: true, Handler: func(msg *message.Message) error {
		if attempt, _ := retry.AttemptFromContext(msg.Context()); attempt.Number == 1 {
			return retry.RetryAfter(4*time.Second, errFate)
		}

		return nil
	}})
	svc.publish("1")
	// A busy machine is late, and waits less often.
	const told = "^call failed retried( unhandled postponed){1,8} call succeeded$"
	await.Until(t, func() bool { return regexp.MustCompile(told).MatchString(svc.told("1")) }, told)
	for _, e := range svc.Events(retry.EventUnhandled, retry.EventPostponed) {
		assert.Equal(t, retry.ClassPostponed, e.Class)
		assert.Equal(t, retry.ActionPostpone, e.Verdict.Action)
	}
}

// What happens to queues and connections.
func TestEvents_OfConnections(t *testing.T) {
	t.Parallel()

	network := newProxy(t, brokertest.URI(t))
	var failures atomic.Int32
	svc := start(t, setup{
		URI: network.URI, QueueType: "quorum",
		Handler: func(*message.Message) error { failures.Add(1); return errFate },
	})
	about := func() []string { // but for what is held: a message that comes again after a cut can be held again
		var lines []string
		for _, e := range svc.Events() {
			if e.Message == nil && e.Kind != retry.EventHeld && e.Kind != retry.EventReleased {
				lines = append(lines, strings.TrimSpace(string(e.Kind)+" "+e.Connection))
			}
		}

		return lines
	}
	until := func(want ...string) {
		t.Helper()
		await.Until(t, func() bool { return slices.Equal(about(), want) }, "%v", want)
	}

	begin := []string{"connected subscriber", "topology-declared", "consuming"}
	until(begin...)

	network.refuse(forwarder)
	svc.publish("1")
	await.Until(t, func() bool { return len(svc.Held()) > 0 }, "it is held")
	held := svc.Events(retry.EventHeld)[0]
	assert.Equal(t, svc.Queue, held.Queue)
	assert.Equal(t, 1, held.Held)
	assert.GreaterOrEqual(t, held.Took, 200*time.Millisecond)
	assert.ErrorAs(t, held.Err, new(*topology.HeldError))
	network.allow(forwarder)
	forwarded := append(begin, "connected forwarder")
	until(forwarded...)
	await.Until(t, func() bool { return len(svc.Events(retry.EventReleased)) > 0 }, "it is held no longer")
	await.Until(t, func() bool { return len(svc.Letters()) > 0 }, "it is dead")

	network.cut(subscriber)
	await.Until(t, func() bool { return len(about()) >= len(forwarded)+5 }, "it comes back")
	again := about()[len(forwarded):]
	assert.ElementsMatch(t, []string{
		"disconnected subscriber", "stopped-consuming", "connected subscriber", "topology-declared", "consuming",
	}, again)
	assert.Less(t, slices.Index(again, "disconnected subscriber"), slices.Index(again, "connected subscriber"))
	require.Error(t, svc.Events(retry.EventDisconnected)[0].Err)

	svc.Broker.Remove(svc.exchange())
	svc.publish("2")
	until(slices.Concat(forwarded, again, []string{"topology-repaired"})...)
	await.Until(t, func() bool { return strings.HasSuffix(svc.told("2"), "dead-lettered") }, "it is dead")

	svc.close()
	assert.Equal(t, "stopped-consuming", about()[len(about())-1])
	assert.Len(t, svc.Events(retry.EventDisconnected), 1, "a close is no loss")
}

// Listening is passive, whatever it does.
func TestEvents_PanicsChangeNothing(t *testing.T) {
	t.Parallel()

	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		c := setup{Delays: ms(100, 110), Handler: byFate}
		c.Options.OnEvent = func(retry.Event) { panic("a listener's bug") }
		svc := run(t, c)
		ids := fates(10)
		svc.publish(ids...)
		svc.finish(ids, await.Bound, 0)
		assert.NotEmpty(t, svc.Logs.with("OnEvent panicked"))
	})
}
