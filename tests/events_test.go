package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

func (s *service) told(id string) string {
	var kinds []string
	for _, e := range s.Events() {
		if e.Message != nil && e.Message.UUID == id {
			kinds = append(kinds, string(e.Kind))
		}
	}

	return strings.Join(kinds, " ")
}

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

var (
	errListed = errors.New("an error that the policies retry")
	errNever  = errors.New("an error of NeverRetry")
)

type opinionError struct{ error }

func (opinionError) Retryable() bool { return false }

const (
	asked         = time.Second // d
	afterDelay    = "retried after the policy's delay"
	unpublishable = "`nil`, but its outputs cannot be published"
	takenAway     = "anything, when a shutdown has taken the message away"
	leftOut       = "an error that `RetryOnly` leaves out"
	retryAfterD   = "`RetryAfter(d, err)`"
)

// what the handler returns, by the words of the docs.
var returned = map[string]func() error{
	"`nil`":                                 func() error { return nil },
	"an error":                              func() error { return errListed },
	"a panic":                               func() error { panic("at the disco") },
	"an error of `NeverRetry`":              func() error { return fmt.Errorf("wrapped: %w", errNever) },
	leftOut:                                 func() error { return errors.New("another error") },
	"an error whose `Retryable()` is false": func() error { return opinionError{errListed} },
	"`Permanent(err)`":                      func() error { return retry.Permanent(errListed) },
	"`Transient(err)`, of `NeverRetry`":     func() error { return retry.Transient(errNever) },
	"`Drop(err)`":                           func() error { return retry.Drop(errListed) },
	retryAfterD:                             func() error { return retry.RetryAfter(asked, errListed) },
	"`Postpone(d)`":                         func() error { return retry.Postpone(asked) },
	unpublishable:                           func() error { return nil },
	takenAway:                               func() error { return errListed },
}

// where the message is in its life, by the words of the docs, and the policy that brings it there.
var stages = map[string]config.Policy{
	"first try, an immediate one is left": {Delays: ms(100, 1500), Immediate: 1},
	"first attempt":                       {Delays: ms(100, 1500)},
	"last attempt":                        {Delays: ms(100, 1500)},
	"the wait would outlive the deadline": {Delays: ms(60_000)},
	"policy without retries":              {Mode: config.ModeDeadLetter},
}

func documented(t *testing.T) map[string]map[string]string {
	t.Helper()
	text := must(os.ReadFile("../docs/how-to/say-what-an-error-means.md"))(t)
	_, table, found := strings.Cut(string(text), "<!-- outcomes -->\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")

	cells := func(line string) []string {
		parts := strings.Split(strings.Trim(line, "| "), "|")
		for i := range parts {
			parts[i] = strings.TrimSpace(parts[i])
		}

		return parts
	}
	lines := strings.Split(strings.TrimSpace(table), "\n")
	columns := cells(lines[0])[1:]
	require.ElementsMatch(t, columns, keys(stages), "each stage of the docs is one of the test")

	rows := map[string]map[string]string{}
	for _, line := range lines[2:] {
		parts := cells(line)
		require.Len(t, parts, len(columns)+1, line)
		rows[parts[0]] = map[string]string{}
		for i, column := range columns {
			rows[parts[0]][column] = parts[i+1]
		}
	}
	require.ElementsMatch(t, keys(rows), keys(returned), "each row of the docs is one of the test")

	return rows
}

func keys[V any](m map[string]V) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)

	return all
}

// The docs' table of outcomes, word for word, on a broker.
func TestOutcomes(t *testing.T) {
	t.Parallel()

	rows := documented(t)
	each(t, stages, func(t *testing.T, stage string, policy config.Policy) {
		want := map[string]string{}
		for row := range rows {
			want[row] = rows[row][stage]
		}
		newStageTest(t, stage, policy).run(want)
	})
}

// stageTest plays one column. A message's UUID is the row that it is for; it comes to the stage,
// its handler returns what the row says, once, and succeeds with any later call.
type stageTest struct {
	*service
	stage string
	only  string // topic with a policy that has RetryOnly

	mu      sync.Mutex
	acted   map[string]moment // what the row says was returned
	next    map[string]moment // the call after that
	blocked chan struct{}     // the message that a shutdown is to take away has reached its handler
}

type moment struct {
	at      time.Time
	attempt retry.Attempt
}

func newStageTest(t *testing.T, stage string, policy config.Policy) *stageTest {
	s := &stageTest{stage: stage, acted: map[string]moment{}, next: map[string]moment{},
		blocked: make(chan struct{}, 1)}
	queue := uniqueName("outcome")
	s.only = queue + "-only"

	policy.NeverRetry = []config.ErrorMatch{config.Is(errNever)}
	picky := policy
	picky.RetryOnly = []config.ErrorMatch{config.Is(errListed)}

	c := setup{Queue: queue}
	c.Options.Policies = config.Policies{Default: policy, Topics: map[string]config.Policy{s.only: picky}}
	c.Options.Concurrency, c.Prefetch = 20, 40
	c.Options.CloseTimeout = 300 * time.Millisecond
	c.Route = func(svc *service) {
		for _, topic := range []string{queue, s.only} {
			svc.Router.AddHandler(uniqueName("handler"), topic, svc.Sub, "nowhere", refusing{}, s.handle)
		}
	}
	s.service = start(t, c)
	t.Cleanup(func() {
		s.Broker.Remove(s.only+".retry", s.only, s.only+".retry.100ms", s.only+".retry.1500ms", s.only+".retry.1m",
			s.only+".dlq")
	})

	return s
}

type refusing struct{}

func (refusing) Publish(string, ...*message.Message) error { return errors.New("refused") }
func (refusing) Close() error                              { return nil }

func (s *stageTest) handle(msg *message.Message) ([]*message.Message, error) {
	row := msg.UUID
	attempt, _ := retry.AttemptFromContext(msg.Context())
	if s.stage == "last attempt" && !attempt.Last {
		return nil, errListed
	}

	s.mu.Lock()
	_, again := s.acted[row]
	if again {
		if _, known := s.next[row]; !known {
			s.next[row] = moment{time.Now(), attempt}
		}
	} else {
		s.acted[row] = moment{time.Now(), attempt}
	}
	s.mu.Unlock()
	if again {
		return nil, nil
	}

	switch row {
	case unpublishable:
		return message.Messages{message.NewMessage("output", nil)}, nil
	case takenAway:
		s.blocked <- struct{}{}
		<-msg.Context().Done()
	}

	kind, _, _ := strings.Cut(row, "#")
	return nil, returned[kind]()
}

func (s *stageTest) run(want map[string]string) {
	for row := range want {
		messages := rabbit.Messages(row)
		if s.stage == "the wait would outlive the deadline" {
			messages[0].Expiration = "50000"
		}
		switch row {
		case takenAway: // below
		case leftOut:
			s.Broker.Publish(s.only, messages...)
		default:
			s.Broker.Publish(s.Queue, messages...)
		}
	}

	seen := func() map[string]string {
		dead := map[string]string{}
		for _, l := range s.Letters() {
			dead[l.Message.UUID] = string(l.Verdict.Reason)
		}
		words := map[string]string{}
		for row := range want {
			words[row] = s.words(row, dead[row])
		}
		words[takenAway] = want[takenAway]

		return words
	}
	var last map[string]string
	for deadline := time.Now().Add(await.Bound); ; <-time.After(tick) {
		late := time.Now().After(deadline)
		if last = seen(); late || equal(last, want) {
			break
		}
	}
	require.Equal(s.t, want, last)
	if want["an error"] == afterDelay {
		s.retriesBeforeD()
	}
	await.Stays(s.t, 1800*time.Millisecond, func() bool {
		last = seen()
		return equal(last, want)
	}, "that is the end of it: %v", last)

	s.publish(takenAway)
	await.Closed(s.t, s.blocked, "the last message reaches its handler")
	before := s.acted[takenAway].attempt
	s.close()

	back := s.Broker.Take(s.Queue, 1)[0]
	require.Equal(s.t, takenAway, rabbit.UUID(back))
	count := ""
	if before.Failures > 0 {
		count = fmt.Sprint(before.Failures)
	}
	require.Equal(s.t, count, rabbit.Text(back, header.Count), "not counted")
	require.Equal(s.t, "back in its queue, not counted", want[takenAway])
}

// retriesBeforeD shows that an error waits for the policy's delay and not for d, which is longer. A
// machine that stands still makes a wait longer and never shorter, so the shortest of five counts.
func (s *stageTest) retriesBeforeD() {
	s.t.Helper()
	var waited time.Duration
	for n := range 5 {
		id := fmt.Sprintf("an error#%d", n)
		s.publish(id)
		await.Until(s.t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			next, called := s.next[id]
			waited = next.at.Sub(s.acted[id].at)

			return called
		}, "another retry")
		if waited < asked {
			return
		}
	}
	s.t.Errorf("the last retry came after %s", waited)
}

func equal(a, b map[string]string) bool {
	for k := range b {
		if a[k] != b[k] {
			return false
		}
	}

	return len(a) == len(b)
}

func (s *stageTest) words(row, reason string) string {
	s.mu.Lock()
	then, acted := s.acted[row]
	next, called := s.next[row]
	s.mu.Unlock()

	waited := next.at.Sub(then.at)
	tries, attempts := next.attempt.Try-then.attempt.Try, next.attempt.Number-then.attempt.Number

	switch {
	case !acted:
		return "not yet there"
	case reason != "" && called:
		return "dead and alive"
	case reason != "":
		return "dead-letter queue: `" + reason + "`"
	case called && attempts == 0 && tries == 1:
		return "called again at once"
	case called && attempts == 1 && waited >= asked && row == retryAfterD:
		return "retried after d or more"
	case called && attempts == 1 && waited >= 100*time.Millisecond && row != retryAfterD:
		return afterDelay // or later: see retriesBeforeD
	case called && attempts == 0 && tries == 0 && waited >= asked:
		return "back after d or more, no attempt used up"
	case called:
		return fmt.Sprintf("called after %s, %d attempts and %d tries later", waited, attempts, tries)
	}
	for _, entry := range s.Logs.with("marked with retry.Drop") {
		if entry.Fields["message_uuid"] == row {
			return "dropped"
		}
	}

	return "acknowledged"
}
