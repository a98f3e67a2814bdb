package consumer

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
	"github.com/amqpretry/watermill-retry/internal/testkit/hostile"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/retry"
)

// The seeds of this one are in testdata/fuzz, with what was found once.

var fuzzedPolicies = []config.Policy{
	{Delays: []time.Duration{time.Second, 30 * time.Second}, MaxPostpone: 2 * time.Minute},
	{Delays: []time.Duration{time.Second}, Retries: 3, Jitter: 1, MaxPostpone: time.Minute},
	{Mode: config.ModeDeadLetter},
	{Delays: []time.Duration{30 * time.Second}, MaxAge: 45 * time.Second, Strategy: config.StrategyShared,
		MaxPostpone: time.Minute},
	{Delays: []time.Duration{time.Second, 30 * time.Second}, OnExpiry: config.ExpiryDrop,
		ClassicQueues: true, Immediate: 2, MaxPostpone: time.Minute},
}

// FuzzDelivery is the life of a message of any kind, with a broker of a few lines: read, decoded,
// handled, failed, copied, routed, and back after its wait, until its end.
func FuzzDelivery(f *testing.F) {
	var queues []Queue
	for _, policy := range fuzzedPolicies {
		policy = policy.WithDefaults()
		plan, err := topology.New("orders", policy, topology.Names{})
		require.NoError(f, err)
		queues = append(queues, Queue{Topic: "topic", Name: "orders", Policy: policy, Plan: plan,
			Names: topology.Names{}.WithDefaults()})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := hostile.From(data)
		queue := queues[c.N(len(queues))]
		life{t, c, queue, []int{0, 8 << 10, 128 << 10}[c.N(3)], time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}.run()
	})
}

// life is one message's.
type life struct {
	t     *testing.T
	c     *hostile.Choices
	queue Queue
	limit int // of a frame
	now   time.Time
}

// fate is what a handler does each time it gets the message.
func (l life) fate() func() error {
	switch l.c.N(6) {
	default:
		return func() error { return errors.New(l.c.Text()) }
	case 3:
		wait := time.Duration(l.c.Uint64() >> (l.c.N(48) + 1))
		return func() error { return retry.Postpone(wait) }
	case 4:
		wait := time.Duration(l.c.Uint64() >> (l.c.N(48) + 1))
		return func() error { return retry.RetryAfter(wait, errors.New("later")) }
	case 5:
		return func() error { panic(l.c.Text()) }
	}
}

func (l life) run() {
	t, policy := l.t, l.queue.Policy
	d, fate := l.c.Delivery(), l.fate()
	first, foreign := d, maps.Clone(d.Headers)
	postpones := false
	calls, attempts := 0, 0

	marshaler := codec.Marshaler(amqp.DefaultMarshaler{})
	if l.c.N(8) == 7 {
		marshaler = rejecting{}
	}
	judge := &engine.Engine{Logger: watermill.NopLogger{}, Now: func() time.Time {
		return l.now
	}, Random: func() float64 { return float64(l.c.Byte()) / 256 }}

	for round := 0; ; round++ {
		require.Less(t, round, 400, "it spins")

		a := l.queue.arrive(&d, l.now, broker{}, watermill.NopLogger{})
		require.Equal(t, "orders", a.State.Queue)
		require.GreaterOrEqual(t, a.State.Count, 0)
		require.LessOrEqual(t, a.State.Count, policy.MaxRetries())
		require.False(t, a.State.Since.After(l.now), "younger than it can be")

		back := pause(&d)
		require.True(t, back >= shortestPause && back <= longestPause)

		h := &handout{engine: judge, queue: &l.queue, arrival: a, delivery: d, ctx: t.Context()}
		h.Arrive(&policy, &h.arrival.State)
		msg, err := codec.Decode(marshaler, &d)
		fail := func(class retry.Class, err error) {
			s := judge.Judge(h, retry.Failure{Class: class, Err: err, Message: codec.Undecoded(&d)})
			require.NoError(t, h.Settle(t.Context(), s))
		}
		switch {
		case a.Crash != nil:
			require.True(t, d.Redelivered, "what was never delivered cannot have crashed")
			fail(retry.ClassCrashed, a.Crash)
		case err != nil:
			fail(retry.ClassUndecodable, err)
		default:
			l.checkMetadata(msg)
			msg.SetContext(engine.WithDelivery(t.Context(), h))
			called := 0
			_, err := middleware.Retry{}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				called++
				err := fate()
				postpones = postpones || err != nil && errors.Is(err, retry.ErrPostponed)
				return nil, err
			})(msg)
			require.NoError(t, err)
			calls += called
			if called > 0 && !postpones {
				attempts++
			}
		}
		_, settlement := h.Answer(true, false)
		require.NotNil(t, settlement, "it failed")
		require.LessOrEqual(t, attempts, policy.MaxRetries()+1, "more attempts than the policy allows")

		if settlement.Action == retry.ActionDrop {
			require.Equal(t, config.ExpiryDrop, policy.OnExpiry)
			return
		}
		require.Contains(t, []retry.Action{retry.ActionRetry, retry.ActionPostpone, retry.ActionDeadLetter},
			settlement.Action)

		limit := l.limit
		if limit > 0 {
			limit -= codec.NewReturns(l.queue.Plan).Size(0)
		}
		order := codec.CopyRequest{Delivery: &d, State: codec.Identify(settlement.State, &d, d.MessageId == ""),
			Wait: settlement.Wait, Replay: a.Replay}
		p, state := codec.CopyOf(&order, limit)
		l.checkCopy(p, state, limit)
		l.checkTheirs(first, foreign, p, state, a.Replay || round > 0)

		queue, wait := l.route(p, state)
		if state.Count == header.CountDead {
			require.Equal(t, "orders.dlq", queue)
			letter, _ := codec.DeadLetter(&amqp091.Delivery{Headers: p.Headers}, "orders")
			require.Equal(t, state.Reason, letter.Reason)
			if calls == 0 {
				require.Contains(t, []retry.Reason{retry.ReasonExpired, retry.ReasonCrashed, retry.ReasonUndecodable,
					retry.ReasonTooLarge, retry.ReasonPostponedTooLong}, state.Reason)
			}

			return
		}
		l.now = l.now.Add(wait)
		d = comeBack(p, queue)
	}
}

var errFuzz = errors.New("it crashed")

// rejecting is a marshaler that wants something else.
type rejecting struct{ amqp.DefaultMarshaler }

func (rejecting) Unmarshal(amqp091.Delivery) (*message.Message, error) { return nil, errFuzz }

// checkMetadata: handlers see neither our headers nor the broker's, and nobody publishes them.
func (l life) checkMetadata(msg *message.Message) {
	for key := range msg.Metadata {
		if header.IsOwn(key) || header.IsBroker(key) {
			require.Fail(l.t, "a handler sees it", key)
		}
	}
	output := message.NewMessage("output", nil)
	for range l.c.N(4) {
		output.Metadata[l.c.Key()] = l.c.Text()
	}
	p, err := codec.Publish(amqp.DefaultMarshaler{}, output)
	require.NoError(l.t, err)
	for key := range p.Headers {
		require.False(l.t, header.IsOwn(key) || header.IsBroker(key) && key != "CC" && key != "BCC", key)
	}
}

// checkCopy: what is ours is readable text within its bounds, the frame is as small as it must be,
// and nothing steers the broker.
func (l life) checkCopy(p amqp091.Publishing, state wire.State, limit int) {
	t, own := l.t, 0
	for key, value := range p.Headers {
		if header.IsBroker(key) {
			require.Fail(t, "the broker's", key)
		}
		if !header.IsOwn(key) {
			continue
		}
		if text, ok := value.(string); !ok || !utf8.ValidString(key) || !utf8.ValidString(text) {
			require.Fail(t, "not readable", "%q: %q", key, value)
		}
		var e fakebroker.Encoder
		e.Short(key)
		e.Field(value)
		own += e.Len()
	}
	require.LessOrEqual(t, own, wire.MaxOwnBytes)
	require.NotContains(t, p.Headers, header.Retire)
	const mostEntries = 8192 // that amqp091-go reads
	require.LessOrEqual(t, len(p.Headers)+16, mostEntries, "nobody could read it with what the broker adds")
	if limit > 0 {
		require.LessOrEqual(t, len(fakebroker.HeaderFrame(p)), limit)
	}
	require.Equal(t, "orders", p.Headers[header.Queue])
	require.Equal(t, strconv.Itoa(state.Count), p.Headers[header.Count])
	require.Empty(t, p.UserId)
	require.NotEqual(t, "amq.rabbitmq.reply-to", p.ReplyTo)
}

// checkTheirs: everything that is the publisher's is there, but for what is not republished.
func (l life) checkTheirs(first amqp091.Delivery, foreign amqp091.Table, p amqp091.Publishing, state wire.State,
	replay bool) {
	t := l.t
	lost := 0
	for key, value := range foreign {
		if header.IsOwn(key) || header.IsBroker(key) || header.IsPoison(key) &&
			(replay || state.Count == header.CountDead) {
			continue
		}
		got, kept := p.Headers[key]
		if !kept {
			lost++
		} else if want, got := fieldBytes(value), fieldBytes(got); want != got {
			require.Equal(t, want, got, key)
		}
	}
	if lost > 0 {
		require.Equal(t, retry.ReasonTooLarge, state.Reason)
		require.NotEmpty(t, p.Headers[header.Removed])
	}
	p.Headers, p.Expiration = nil, ""
	if first.ReplyTo == "amq.rabbitmq.reply-to" {
		first.ReplyTo = ""
	}
	require.Equal(t, amqp091.Publishing{
		ContentType: first.ContentType, ContentEncoding: first.ContentEncoding, DeliveryMode: first.DeliveryMode,
		Priority:      first.Priority,
		CorrelationId: first.CorrelationId, ReplyTo: first.ReplyTo, MessageId: first.MessageId,
		Timestamp: first.Timestamp, Type: first.Type,
		AppId: first.AppId, Body: first.Body,
	}, p)
}

func fieldBytes(value any) string {
	if table, ok := value.(amqp091.Table); ok { // in no order
		return fmt.Sprintf("%#v", table)
	}
	if list, ok := value.([]any); ok {
		return fmt.Sprintf("%#v", list)
	}
	var e fakebroker.Encoder
	e.Field(value)

	return e.String()
}

// route is where the broker puts a copy, and for how long: to one queue of the plan, which no
// header of a publisher chooses.
func (l life) route(p amqp091.Publishing, state wire.State) (queue string, wait time.Duration) {
	exchange, key := l.queue.Plan.Route(state.Count, 0, &p)
	if exchange == "" {
		return key, 0
	}
	var found []string
	for _, b := range l.queue.Plan.Bindings {
		if matches(b, exchange, key, p.Headers) {
			found = append(found, b.Queue)
		}
	}
	require.Len(l.t, found, 1, "one queue for each copy")
	for _, q := range l.queue.Plan.Queues {
		if q.Name == found[0] {
			wait = q.Delay
		}
	}
	if p.Expiration != "" {
		ms, err := strconv.ParseInt(p.Expiration, 10, 64)
		require.NoError(l.t, err)
		require.Positive(l.t, ms)
		require.Less(l.t, time.Duration(ms)*time.Millisecond, wait)
		wait = time.Duration(ms) * time.Millisecond
	}

	return found[0], wait
}

// comeBack is what the broker makes of a copy whose wait is over.
func comeBack(p amqp091.Publishing, queue string) amqp091.Delivery {
	headers := maps.Clone(p.Headers)
	headers["x-death"] = []any{amqp091.Table{"queue": queue, "reason": "expired", "exchange": "orders.retry",
		"count": int64(1)}}
	headers["x-first-death-queue"] = queue

	return amqp091.Delivery{
		Headers: headers, ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, DeliveryMode: p.DeliveryMode,
		Priority:      p.Priority,
		CorrelationId: p.CorrelationId, ReplyTo: p.ReplyTo, MessageId: p.MessageId, Timestamp: p.Timestamp,
		Type: p.Type, AppId: p.AppId,
		Body: p.Body, RoutingKey: "orders",
	}
}
