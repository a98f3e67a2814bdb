package tests

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	routermiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

type orderError struct{ number int }

func (e *orderError) Error() string { return fmt.Sprintf("order %d is lost", e.number) }

// added is how many bytes our headers and the poison keys have, with what the wire needs for each.
func added(d amqp091.Delivery) int {
	size := 0
	for key, value := range d.Headers {
		if s, ok := value.(string); ok && (header.IsOwn(key) || header.IsPoison(key)) {
			size += 1 + len(key) + 1 + 4 + len(s)
		}
	}

	return size
}

func requireReadable(t *testing.T, d amqp091.Delivery) {
	t.Helper()
	for key, value := range d.Headers {
		if header.IsOwn(key) || header.IsPoison(key) {
			require.IsType(t, "", value, key)
			require.True(t, utf8.ValidString(rabbit.Text(d, key)), "%s: %q", key, value)
		}
	}
	require.LessOrEqual(t, len(rabbit.Text(d, header.Error)), 2<<10)
	require.LessOrEqual(t, len(rabbit.Text(d, header.ErrorType)), 256)
	require.LessOrEqual(t, added(d), 16<<10)
}

// P9: a dead letter tells why, what, who, where and when.
func TestP9_DeadLetterExplainsItself(t *testing.T) {
	t.Parallel()

	eachQueueType(t, func(t *testing.T, queueType string) {
		c := setup{Delays: ms(100, 120), QueueType: queueType}
		c.Route = func(svc *service) {
			svc.Router.AddConsumerHandler("pack-orders", svc.Queue, svc.Sub,
				svc.recorded(func(msg *message.Message) error {
					a, _ := retry.AttemptFromContext(msg.Context())
					return fmt.Errorf("cannot pack: %w", &orderError{a.Number})
				}))
		}
		svc := start(t, c)

		delays := ms(100, 120)
		before := time.Now().Add(-time.Millisecond)
		svc.publish("1")
		dead := svc.Broker.Take(svc.dlq(), 1)[0]
		after := time.Now()
		requireReadable(t, dead)

		host := must(os.Hostname())(t)
		for key, want := range map[string]string{
			"amqpretry-v": "1", "amqpretry-count": "-1", "amqpretry-delay": "", "amqpretry-attempts": "3",
			"amqpretry-reason": "exhausted", "amqpretry-error": "cannot pack: order 3 is lost",
			"amqpretry-error-type": "*tests.orderError", "amqpretry-handler": "pack-orders",
			"amqpretry-topic": svc.Queue,
			"amqpretry-queue": svc.Queue, "amqpretry-host": host, "amqpretry-exchange": "",
			"amqpretry-routing-key": svc.Queue,
			"amqpretry-replays":     "", "amqpretry-deadline": "", "amqpretry-removed": "",
			routermiddleware.ReasonForPoisonedKey:  "cannot pack: order 3 is lost",
			routermiddleware.PoisonedTopicKey:      svc.Queue,
			routermiddleware.PoisonedHandlerKey:    "pack-orders",
			routermiddleware.PoisonedSubscriberKey: "amqpretry.Subscriber",
		} {
			assert.Equal(t, want, rabbit.Text(dead, key), key)
		}
		for _, key := range []string{header.Exchange, header.RoutingKey} {
			assert.Contains(t, dead.Headers, key)
		}
		assert.NotEmpty(t, rabbit.Text(dead, header.ID))

		history := historyOf(t, dead)
		require.Len(t, history, 3)
		calls := svc.Calls.of("1")
		require.Len(t, calls, 3)
		for i, a := range history {
			assert.Equal(t, i+1, a.Number)
			assert.Equal(t, fmt.Sprintf("cannot pack: order %d is lost", i+1), a.Error)
			assert.Equal(t, "*tests.orderError", a.Type)
			latest := after
			if i < len(delays) { // the message has waited since
				latest = calls[i+1].At.Add(5*time.Millisecond - delays[i])
			}
			assert.WithinRange(t, a.At, calls[i].At.Add(-2*time.Millisecond), latest)
		}
		first := must(time.Parse(time.RFC3339, rabbit.Text(dead, header.FirstFailure)))(t)
		last := must(time.Parse(time.RFC3339, rabbit.Text(dead, header.LastFailure)))(t)
		assert.Equal(t, history[0].At, first)
		assert.Equal(t, history[2].At, last)
		assert.WithinRange(t, first, before, after)
		assert.Greater(t, last.Sub(first), 215*time.Millisecond)
		assert.True(t, strings.HasSuffix(rabbit.Text(dead, header.FirstFailure), "Z"), "UTC")

		letter := svc.toldLetters(1)[0]
		lost := errorAs[*orderError](t, letter.Err)
		assert.Equal(t, 3, lost.number)
		assert.Equal(t, retry.Verdict{Action: retry.ActionDeadLetter, Reason: "exhausted"}, letter.Verdict)
		assert.Equal(t, 3, letter.Calls)
		assert.Equal(t, []string{svc.Queue, svc.Queue, "pack-orders"}, []string{letter.Queue, letter.Topic,
			letter.Handler})
		svc.close()
		assert.Empty(t, svc.Broker.Drain(svc.Queue))
	})
}

// toldLetters waits for so many events of dead letters: each comes after the dead letter itself.
// There may be no more.
func (s *service) toldLetters(n int) []retry.Event {
	s.t.Helper()
	await.Until(s.t, func() bool { return len(s.Letters()) >= n }, "events of %d dead letters", n)
	told := s.Letters()
	require.Len(s.t, told, n)

	return told
}

// P9: of many attempts the first and the last nine are kept, and the number of all.
func TestP9_HistoryIsBounded(t *testing.T) {
	t.Parallel()

	c := setup{Handler: failing(99)}
	c.Options.Policies = retries(ms(20)...)
	c.Options.Policies.Default.Retries = 14
	svc := start(t, c)
	svc.publish("1")

	dead := svc.Broker.Take(svc.dlq(), 1)[0]
	var numbers []int
	for _, a := range historyOf(t, dead) {
		numbers = append(numbers, a.Number)
		assert.Equal(t, fmt.Sprintf("failure %d", a.Number), a.Error)
	}
	assert.Equal(t, []int{1, 7, 8, 9, 10, 11, 12, 13, 14, 15}, numbers)
	hasHeaders(t, dead, headers{header.Attempts: "15", header.Error: "failure 15"})
}

type panickyError struct{ text *string }

func (e *panickyError) Error() string { return *e.text }

// P9: no error text, however long or broken, loses a message, breaks a header or the frame that it
// travels in.
func TestP9_ErrorTexts(t *testing.T) {
	t.Parallel()

	mib := strings.Repeat("é long story. ", 1<<20/15+1)
	require.Greater(t, len(mib), 1<<20)

	c := setup{Prefetch: 20}
	c.Options.Policies = retries(ms(20)...)
	c.Options.Policies.Default.Retries = 11
	c.Options.Concurrency = 8
	c.Handler = func(msg *message.Message) error {
		switch msg.UUID {
		case "long":
			return errors.New(mib)
		case "escaped": // JSON makes six bytes of each
			return errors.New(strings.Repeat("\x01", 1<<20))
		case "invalid":
			return errors.New("caf\xe9 \xff\xfe\x80 end")
		case "long and invalid":
			return errors.New(strings.Repeat("\xf0\x9f\x8e", 1<<19))
		case "panics":
			return &panickyError{}
		case "panics when nil":
			return (*panickyError)(nil)
		case "wrapped panics":
			return errors.Join(errors.New("one"), &panickyError{})
		case "empty":
			return errors.New("")
		}

		return nil
	}
	svc := start(t, c)
	ids := []string{"long", "escaped", "invalid", "long and invalid", "panics", "panics when nil", "wrapped panics",
		"empty"}
	svc.publish(ids...)

	letters := map[string]amqp091.Delivery{}
	for _, d := range svc.Broker.Take(svc.dlq(), len(ids)) {
		letters[rabbit.UUID(d)] = d
		requireReadable(t, d)
		assert.Equal(t, "exhausted", rabbit.Text(d, header.Reason), rabbit.UUID(d))
		assert.Equal(t, "12", rabbit.Text(d, header.Attempts), rabbit.UUID(d))
		assert.Equal(t, 12, svc.Calls.ids()[rabbit.UUID(d)], rabbit.UUID(d))
		assert.NotEmpty(t, rabbit.Text(d, header.ErrorType), rabbit.UUID(d))
		assert.NotEmpty(t, historyOf(t, d), rabbit.UUID(d))
		assert.Equal(t, 1, historyOf(t, d)[0].Number, "the first is kept")
		assert.Equal(t, rabbit.UUID(d), string(d.Body))
	}
	require.Len(t, letters, len(ids))

	text := rabbit.Text(letters["long"], header.Error)
	assert.Greater(t, len(text), 2<<10-10, "as much as there is room for")
	assert.True(t, strings.HasPrefix(mib, strings.TrimSuffix(text, "…")))
	assert.True(t, strings.HasSuffix(text, "…"), "cut visibly")
	assert.Equal(t, text, rabbit.Text(letters["long"], "reason_poisoned"))
	assert.Len(t, historyOf(t, letters["long"]), 10)
	assert.Equal(t, "caf\uFFFD \uFFFD end", rabbit.Text(letters["invalid"], header.Error))
	for _, id := range []string{"panics", "panics when nil"} {
		assert.Contains(t, rabbit.Text(letters[id], header.Error), "panicked", id)
		assert.Equal(t, "*tests.panickyError", rabbit.Text(letters[id], header.ErrorType), id)
	}
	assert.Empty(t, svc.Logs.with("Connection to RabbitMQ lost"))
	svc.toldLetters(len(ids))
}

// P9: a message whose own headers fill a frame leaves no room for ours. It becomes a dead letter
// without the largest of them, which are named; the connection lives, and no other message notices.
func TestP9_TooLarge(t *testing.T) {
	t.Parallel()

	const frame = 131072 // as negotiated
	proxy := newProxy(t, brokertest.URI(t))
	c := setup{Delays: ms(100, 150), URI: proxy.URI, Prefetch: 20, Handler: func(msg *message.Message) error {
		if msg.UUID == "healthy" {
			return nil
		}

		return fmt.Errorf("it fails: %s", strings.Repeat("why? ", 400))
	}}
	svc := start(t, c)

	one := with("one", amqp091.Table{"big": strings.Repeat("b", frame-300), "small": "kept", "n": int64(4)})
	one.CorrelationId = "kept"
	many := with("many", nil)
	for i := range 616 { // 212 bytes each
		many.Headers[fmt.Sprintf("h-%04d", i)] = strings.Repeat("v", 200)
	}
	nested := with("nested", amqp091.Table{"list": []any{strings.Repeat("l", frame/2),
		strings.Repeat("m", frame/2-300)}, "small": "kept"})
	// Room for what is needed, not for a history and a long error text.
	narrow := with("narrow", amqp091.Table{"big": strings.Repeat("b", frame-3400)})

	svc.publish("healthy")
	svc.Broker.Publish(svc.Queue, one, many, nested, narrow)
	svc.publish("ordinary")

	letters := map[string]amqp091.Delivery{}
	for _, d := range svc.Broker.Take(svc.dlq(), 5) {
		letters[rabbit.UUID(d)] = d
		requireReadable(t, d)
		assert.Equal(t, rabbit.UUID(d), string(d.Body))
		for _, key := range []string{header.Version, header.Queue, header.FirstFailure, header.LastFailure,
			header.Attempts} {
			assert.NotEmpty(t, rabbit.Text(d, key), "%s: %s", rabbit.UUID(d), key)
		}
	}
	assert.Equal(t, map[string]string{
		"one": "too-large", "many": "too-large", "nested": "too-large", "narrow": "exhausted", "ordinary": "exhausted",
	}, reasons([]amqp091.Delivery{letters["one"], letters["many"], letters["nested"], letters["narrow"],
		letters["ordinary"]}))
	assert.Equal(t, map[string]int{"healthy": 1, "one": 1, "many": 1, "nested": 1, "narrow": 3, "ordinary": 3},
		svc.Calls.ids())

	d := letters["one"]
	assert.Equal(t, "big", rabbit.Text(d, header.Removed))
	assert.NotContains(t, d.Headers, "big")
	assert.Equal(t, "kept", d.Headers["small"])
	assert.Equal(t, int64(4), d.Headers["n"])
	assert.Equal(t, "kept", d.CorrelationId)
	assert.Contains(t, rabbit.Text(d, header.Error), "it fails: why?")
	assert.Len(t, historyOf(t, d), 1)

	d = letters["many"]
	removed := strings.Split(rabbit.Text(d, header.Removed), ", ")
	assert.Less(t, len(removed), 40, "no more than is needed")
	kept := theirs(t, d, true)
	assert.Len(t, kept, 617-len(removed))
	for _, key := range removed {
		assert.Contains(t, many.Headers, key)
		assert.NotContains(t, kept, key)
	}

	assert.Equal(t, "list", rabbit.Text(letters["nested"], header.Removed))
	assert.Equal(t, "kept", letters["nested"].Headers["small"])

	d = letters["narrow"]
	assert.Len(t, d.Headers["big"], frame-3400, "ours give way, not the publisher's")
	assert.NotContains(t, d.Headers, header.Removed)
	assert.Equal(t, "3", rabbit.Text(d, header.Attempts))

	assert.Equal(t, 1, proxy.dialled(forwarder), "the connection for copies was never lost")
	assert.Equal(t, 1, proxy.dialled(subscriber))
	for _, letter := range svc.toldLetters(5) {
		assert.Equal(t, rabbit.Text(letters[letter.Message.UUID], header.Reason), string(letter.Verdict.Reason))
	}
}

// P9: no copy is larger than a frame with what the broker adds to it: the client that gets it would
// close its connection, and get it again.
func TestP9_NoSizeBreaksAConnection(t *testing.T) {
	t.Parallel()

	const frame = 131072
	proxy := newProxy(t, brokertest.URI(t))
	svc := start(t, setup{Delays: ms(30, 40), URI: proxy.URI, Prefetch: 10, Handler: func(*message.Message) error {
		return errors.New(strings.Repeat("why? ", 100))
	}})

	var rooms []int
	for room := 200; room <= 4400; room += 150 {
		rooms = append(rooms, room)
		svc.Broker.Publish(svc.Queue, with(fmt.Sprint(room), amqp091.Table{"big": strings.Repeat("b", frame-room)}))
	}

	await.Until(t, func() bool {
		return len(svc.Letters()) == len(rooms) || proxy.dialled(subscriber) > 1
	}, "all end")
	require.Equal(t, 1, proxy.dialled(subscriber), "a delivery was too large for its frame")
	require.Equal(t, 1, proxy.dialled(forwarder), "a copy was too large for its frame")

	for range 2 { // looking at dead letters must not become impossible by looking
		svc.Broker.Do(func(ch *amqp091.Channel) error {
			for {
				if _, ok, err := ch.Get(svc.dlq(), false); err != nil || !ok {
					return err
				}
			}
		})
	}
	found := reasons(svc.Broker.Take(svc.dlq(), len(rooms)))
	calls, last := svc.Calls.ids(), "too-large"
	for _, room := range rooms {
		reason, id := found[fmt.Sprint(room)], fmt.Sprint(room)
		assert.Contains(t, []string{last, "exhausted"}, reason, "%d bytes of room", room)
		if reason == "exhausted" {
			assert.Equal(t, 3, calls[id], "%d bytes of room", room)
		}
		last = reason
	}
	assert.Equal(t, "exhausted", last, "some have room enough")
	assert.Equal(t, "too-large", found["200"], "some have not")
}

// P9: the hook decides what is written, on the message and in the logs.
func TestP9_Redaction(t *testing.T) {
	t.Parallel()

	const secret = "hunter2"
	c := setup{Delays: ms(30, 40), Handler: func(msg *message.Message) error {
		if msg.UUID == "panic" {
			panic("password " + secret)
		}

		return errors.New("password " + secret)
	}}
	c.Configure = func(conf *amqp.Config) { conf.Marshaler = leaky{} }
	c.Options.PanicStacks = true
	c.Options.ErrorText = func(err error) string { return strings.ReplaceAll(err.Error(), secret, "[redacted]") }
	svc := start(t, c)
	svc.publish("error", "panic", "undecodable")

	for _, d := range svc.Broker.Take(svc.dlq(), 3) {
		for key, value := range d.Headers {
			assert.NotContains(t, fmt.Sprint(value), secret, key)
		}
		for _, key := range []string{header.Error, "reason_poisoned"} {
			assert.Contains(t, rabbit.Text(d, key), "password [redacted]", "%s: %s", rabbit.UUID(d), key)
		}
		for _, a := range historyOf(t, d) {
			assert.Contains(t, a.Error, "password [redacted]")
		}
	}
	logged := 0
	for _, entry := range svc.Logs.All() {
		assert.NotContains(t, entry.String(), secret)
		if strings.Contains(entry.String(), "[redacted]") {
			logged++
		}
	}
	assert.Equal(t, 7, logged, "each failure")
	assert.ErrorContains(t, svc.toldLetters(3)[0].Err, secret, "the hook is for texts only")
}

// P9: events tell the fingerprint that package dlq computes from the dead letter, from the first
// failure on.
func TestP9_EventsTellTheFingerprint(t *testing.T) {
	t.Parallel()

	const frame = 131072
	long := strings.Repeat("why, customer 17? ", 400)
	c := setup{Delays: ms(30), Prefetch: 20, Handler: func(msg *message.Message) error {
		switch msg.UUID {
		case "wrapped":
			return fmt.Errorf("cannot ship: %w", &orderError{7})
		case "permanent":
			return retry.Permanent(&orderError{8})
		case "panic":
			panic("order 12 has no customer")
		case "empty":
			return errors.New("")
		case "long":
			return errors.New(long)
		case "invalid":
			return errors.New("caf\xe9 17")
		case "quoted":
			return fmt.Errorf("no field %q", strings.Repeat("x", 3000))
		}
		if strings.HasPrefix(msg.UUID, "full") {
			return fmt.Errorf("%s: %w", strings.Repeat("why? ", 100), &orderError{9})
		}

		return errors.New("password hunter2 of order 4")
	}}
	c.Configure = func(conf *amqp.Config) { conf.Marshaler = leaky{} }
	c.Options.ErrorText = func(err error) string { return strings.ReplaceAll(err.Error(), "hunter2", "[redacted]") }
	svc := start(t, c)
	ids := []string{"plain", "wrapped", "permanent", "panic", "empty", "long", "invalid", "quoted", "undecodable"}
	svc.publish(ids...)
	full := 0
	for room := 200; room <= 4400; room += 300 { // ours give way, step by step
		id := fmt.Sprint("full-", room)
		svc.Broker.Publish(svc.Queue, with(id, amqp091.Table{"big": strings.Repeat("b", frame-room)}))
		full++
	}
	letters := lettersOf(t, svc)
	hasDead(t, letters, len(ids)+full)
	svc.toldLetters(len(ids) + full)

	found := map[string]string{}
	for l, err := range letters.Browse(t.Context(), dlq.Filter{}) {
		require.NoError(t, err)
		found[string(l.Message.Body)] = l.Fingerprint().ID
	}
	require.Len(t, found, len(ids)+full)
	for _, e := range svc.Events(retry.EventFailed, retry.EventUnhandled, retry.EventRetried, retry.EventDeadLettered) {
		id := string(e.Message.Payload)
		if e.Kind == retry.EventDeadLettered || !strings.HasPrefix(id, "full") {
			assert.Equal(t, found[id], e.Cause.Fingerprint(), "%s of %s: %+v", e.Kind, id, e.Cause)
		}
		assert.NotContains(t, e.Cause.Error, "hunter2")
	}
}

type leaky struct{ amqp.DefaultMarshaler }

func (m leaky) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if string(d.Body) == "undecodable" {
		return nil, errors.New("password hunter2")
	}

	return m.DefaultMarshaler.Unmarshal(d)
}

// P9: a hook that panics costs the text, not the message.
func TestP9_PanickingHooks(t *testing.T) {
	t.Parallel()

	c := setup{Delays: ms(30), Handler: failing(9)}
	c.Options.ErrorText = func(error) string { panic("hook's bug") }
	svc := start(t, c)
	svc.publish("1")
	dead := svc.Broker.Take(svc.dlq(), 1)[0]
	assert.Equal(t, "exhausted", rabbit.Text(dead, header.Reason))
	assert.Contains(t, rabbit.Text(dead, header.Error), "panicked")
}

// P9: a panic is a failure like any other, its stack is shown on request only.
func TestP9_PanicStacks(t *testing.T) {
	t.Parallel()

	for _, stacks := range []bool{false, true} {
		t.Run(fmt.Sprint(stacks), func(t *testing.T) {
			t.Parallel()

			c := setup{Delays: ms(30), Handler: func(*message.Message) error { panic("out of boxes") }}
			c.Options.PanicStacks = stacks
			svc := start(t, c)
			svc.publish("1")

			dead := svc.Broker.Take(svc.dlq(), 1)[0]
			requireReadable(t, dead)
			hasHeaders(t, dead, headers{header.Reason: "panic", header.Attempts: "2"})
			assert.Contains(t, rabbit.Text(dead, header.Error), "out of boxes")
			assert.Equal(t, "*retry.PanicError", rabbit.Text(dead, header.ErrorType))
			assert.Equal(t, "panic", historyOf(t, dead)[0].Reason)
			for _, key := range []string{header.Error, header.History, "reason_poisoned"} {
				assert.Equal(t, stacks, strings.Contains(rabbit.Text(dead, key), "goroutine"), key)
			}
			logged := false
			for _, entry := range svc.Logs.All() {
				logged = logged || strings.Contains(entry.String(), "goroutine ")
			}
			assert.Equal(t, stacks, logged)
		})
	}
}

type hopeless struct{ retryable bool }

func (e hopeless) Error() string   { return "hopeless" }
func (e hopeless) Retryable() bool { return e.retryable }

// P9: what an error asks for is done, and the dead letter says so.
func TestP9_ErrorsDecide(t *testing.T) {
	t.Parallel()

	c := setup{Delays: ms(30), Tiers: true, Prefetch: 20}
	c.Handler = func(msg *message.Message) error {
		lost := &orderError{7}
		switch msg.UUID {
		case "permanent":
			return retry.Permanent(lost)
		case "wrapped permanent":
			return fmt.Errorf("while packing: %w", retry.Permanent(lost))
		case "not retryable":
			return fmt.Errorf("while packing: %w", hopeless{false})
		case "retryable":
			return hopeless{true}
		case "panic with permanent":
			panic(retry.Permanent(lost))
		case "drop":
			return retry.Drop(lost)
		}

		return lost
	}
	svc := start(t, c)
	svc.publish("permanent", "wrapped permanent", "not retryable", "retryable", "panic with permanent", "drop", "other")

	letters := svc.Broker.Take(svc.dlq(), 6)
	await.Until(t, func() bool { return svc.Broker.Depth(svc.Queue) == 0 && svc.Calls.count() == 9 }, "all handled")
	await.Stays(t, 150*time.Millisecond, func() bool {
		return svc.Calls.count() == 9 && svc.Broker.Depth(svc.dlq()) == 0
	}, "no more")
	assert.Equal(t, map[string]string{
		"permanent": "permanent", "wrapped permanent": "permanent", "not retryable": "permanent",
		"panic with permanent": "permanent",
		"retryable":            "exhausted", "other": "exhausted",
	}, reasons(letters))
	assert.Equal(t, map[string]int{
		"permanent": 1, "wrapped permanent": 1, "not retryable": 1, "panic with permanent": 1, "drop": 1,
		"retryable": 2, "other": 2,
	}, svc.Calls.ids())

	for _, d := range letters {
		switch rabbit.UUID(d) {
		case "permanent", "wrapped permanent", "other":
			assert.Equal(t, "*tests.orderError", rabbit.Text(d, header.ErrorType), "%s: the cause, not the mark",
				rabbit.UUID(d))
			assert.Contains(t, rabbit.Text(d, header.Error), "order 7 is lost")
		case "not retryable":
			assert.Equal(t, "tests.hopeless", rabbit.Text(d, header.ErrorType))
		}
	}
	await.Until(t, func() bool { return len(svc.Logs.with("dropping it")) > 0 }, "it is said that one is dropped")
	dropped := svc.Logs.with("dropping it")
	require.Len(t, dropped, 1)
	assert.Equal(t, "drop", dropped[0].Fields["message_uuid"])
	svc.toldLetters(6) // a dropped message is no dead letter

	svc.close()
	for _, queue := range []string{svc.Queue, svc.retryQueue(30 * time.Millisecond)} {
		assert.Zero(t, svc.Broker.Depth(queue), "the dropped one is gone")
	}
}

// P9: the final step alone, for handlers without retries: the first failure is the last, whatever
// the policy says.
func TestP9_PoisonAlone(t *testing.T) {
	t.Parallel()

	each(t, map[string]bool{"alone": false, "inside of Middleware": true}, func(t *testing.T, _ string, inner bool) {
		uri, queue := brokertest.URI(t), uniqueName("promise")
		c := setup{Delays: ms(30, 40), URI: uri, Queue: queue}
		handle := failing(9)
		c.Route = func(svc *service) {
			if !inner {
				bare(t, svc)
			}
			h := svc.Router.AddConsumerHandler("once", queue, svc.Sub,
				svc.recorded(func(msg *message.Message) error {
					if msg.UUID == "panic" {
						panic("once")
					}

					return handle(msg)
				}))
			h.AddMiddleware(svc.Retrier.Poison)
		}
		svc := start(t, c)
		svc.publish("error", "panic")

		letters := svc.Broker.Take(svc.dlq(), 2)
		assert.Equal(t, map[string]string{"error": "exhausted", "panic": "panic"}, reasons(letters))
		assert.Equal(t, map[string]int{"error": 1, "panic": 1}, svc.Calls.ids())
		for _, d := range letters {
			hasHeaders(t, d, headers{header.Attempts: "1", header.Handler: "once", "handler_poisoned": "once",
				header.Count: "-1"})
			assert.Len(t, historyOf(t, d), 1)
		}
		svc.toldLetters(2)
		assert.Zero(t, svc.Broker.Depth(svc.Queue))
	})
}

// P9: the alarm is raised once for each dead letter, and whoever looks then finds it there.
func TestP9_TheEventComesAfterIt(t *testing.T) {
	t.Parallel()

	for _, stock := range []bool{false, true} {
		t.Run(fmt.Sprintf("stock %t", stock), func(t *testing.T) {
			t.Parallel()

			uri, queue := brokertest.URI(t), uniqueName("promise")
			broker := newRabbit(t, uri)

			var (
				mu    sync.Mutex
				there = map[string][]bool{} // for each call of the hook: was it in the queue?
			)
			options := noOptions()
			options.Policies = retries(ms(30)...)
			options.Concurrency = 2
			options.OnEvent = func(l retry.Event) {
				if l.Kind != retry.EventDeadLettered {
					return
				}
				found := false
				_ = broker.Try(func(ch *amqp091.Channel) error { // closing the channel puts back what was taken
					for {
						d, ok, err := ch.Get(queue+".dlq", false)
						if err != nil || !ok {
							return err
						}
						found = found || rabbit.UUID(d) == l.Message.UUID
					}
				})

				mu.Lock()
				defer mu.Unlock()
				there[l.Message.UUID] = append(there[l.Message.UUID], found)
				panic("an alarm's bug")
			}
			if stock {
				options.Policies = withoutStrategy(options.Policies)
			}
			retrier := newRetrier(t, amqp.NewDurableQueueConfig(uri), options)

			// The harness keeps the hook for itself, so this is a router of its own.
			runOwn(t, retrier, queue, stock, failing(9))
			ids := []string{"1", "2", "3"}
			for _, id := range ids { // one at a time: each looks at all that lies there
				broker.Publish(queue, rabbit.Messages(id)...)
				await.Until(t, func() bool {
					mu.Lock()
					defer mu.Unlock()
					return len(there[id]) > 0
				}, "the alarm")
			}
			await.Stays(t, 200*time.Millisecond, func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(there) == 3
			}, "no further alarm")

			mu.Lock()
			defer mu.Unlock()
			assert.Equal(t, map[string][]bool{"1": {true}, "2": {true}, "3": {true}}, there)
			broker.Has(queue+".dlq", 3)
		})
	}
}

// runOwn runs a router with one handler on a retrier that the harness did not make.
func runOwn(t *testing.T, retrier ownRetrier, queue string, stock bool, handler func(*message.Message) error) {
	t.Helper()
	logs := newLogs(t)

	var subscriber message.Subscriber
	var err error
	if stock {
		subscriber, err = amqp.NewSubscriber(retrier.Config(), logs)
	} else {
		subscriber, err = retrier.NewSubscriber()
	}
	require.NoError(t, err)

	router := newRouter(t, logs, retrier.Middleware)
	router.AddConsumerHandler("handler", queue, subscriber, handler)
	runRouter(t, router)

	plan := must(retrier.Plan(queue))(t)
	t.Cleanup(func() {
		require.NoError(t, router.Close())
		newRabbit(t, retrier.Config().Connection.AmqpURI).RemovePlan(plan)
	})
}
