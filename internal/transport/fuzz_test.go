package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/retry"
)

// The seeds of these are in testdata/fuzz, with what was found once.

var fuzzedPolicies = []config.Policy{
	{Delays: []time.Duration{time.Second, 30 * time.Second}, MaxPostpone: 2 * time.Minute},
	{Delays: []time.Duration{time.Second}, Retries: 3, Jitter: 1, MaxPostpone: time.Minute},
	{Mode: config.ModeDeadLetter},
	{Delays: []time.Duration{30 * time.Second}, MaxAge: 45 * time.Second, Scope: config.ScopeShared, MaxPostpone: time.Minute},
	{Delays: []time.Duration{time.Second, 30 * time.Second}, OnExpiry: config.ExpiryDrop, QueueType: config.QueueTypeClassic, Immediate: 2, MaxPostpone: time.Minute},
}

// FuzzDelivery is the life of a message of any kind, with a broker of a few lines: read, decoded, handled, failed, copied, routed, and
// back after its wait, until its end.
func FuzzDelivery(f *testing.F) {
	var sources []Source
	for _, policy := range fuzzedPolicies {
		policy = policy.WithDefaults()
		plan, err := topology.New("orders", policy, topology.Names{})
		require.NoError(f, err)
		sources = append(sources, Source{Topic: "topic", Queue: "orders", Policy: policy, Plan: plan, Names: topology.Names{}.WithDefaults()})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &choices{data}
		source := sources[c.n(len(sources))]
		life{t, c, source, []int{0, 8 << 10, 128 << 10}[c.n(3)], time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}.run()
	})
}

// life is one message's.
type life struct {
	t      *testing.T
	c      *choices
	source Source
	limit  int // of a frame
	now    time.Time
}

// fate is what a handler does each time it gets the message.
func (l life) fate() func() error {
	switch l.c.n(6) {
	default:
		return func() error { return errors.New(l.c.text()) }
	case 3:
		wait := time.Duration(l.c.uint64() >> (l.c.n(48) + 1))
		return func() error { return retry.Postpone(wait) }
	case 4:
		wait := time.Duration(l.c.uint64() >> (l.c.n(48) + 1))
		return func() error { return retry.RetryAfter(wait, errors.New("later")) }
	case 5:
		return func() error { panic(l.c.text()) }
	}
}

func (l life) run() {
	t, policy := l.t, l.source.Policy
	d, fate := l.c.delivery(), l.fate()
	first, foreign := d, maps.Clone(d.Headers)
	postpones := false
	calls, attempts := 0, 0

	marshaler := Marshaler(amqp.DefaultMarshaler{})
	if l.c.n(8) == 7 {
		marshaler = rejecting{}
	}
	judge := &engine.Engine{Logger: watermill.NopLogger{}, Now: func() time.Time { return l.now }, Random: func() float64 { return float64(l.c.byte()) / 256 }}

	for round := 0; ; round++ {
		require.Less(t, round, 400, "it spins")

		a := l.source.arrive(&d, l.now, watermill.NopLogger{})
		require.Equal(t, "orders", a.state.Queue)
		require.GreaterOrEqual(t, a.state.Count, 0)
		require.LessOrEqual(t, a.state.Count, policy.MaxRetries())
		require.False(t, a.state.Since.After(l.now), "younger than it can be")

		h := &handle{engine: judge, source: &l.source, arrival: a, delivery: d, ctx: t.Context()}
		h.Arrive(&policy, &h.state)
		msg, err := decode(marshaler, &d)
		switch {
		case a.crashed:
			require.True(t, d.Redelivered, "what was never delivered cannot have crashed")
			s := judge.Judge(h, retry.Failure{Class: retry.ClassCrashed, Err: errFuzz, Message: raw(&d)})
			h.settlement = &s
		case err != nil:
			s := judge.Judge(h, retry.Failure{Class: retry.ClassUndecodable, Err: err, Message: raw(&d)})
			h.settlement = &s
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
		settlement, _ := h.answer()
		require.NotNil(t, settlement, "it failed")
		require.LessOrEqual(t, attempts, policy.MaxRetries()+1, "more attempts than the policy allows")

		if settlement.Verdict.Action == retry.ActionDrop {
			require.Equal(t, config.ExpiryDrop, policy.OnExpiry)
			return
		}
		require.Contains(t, []retry.Action{retry.ActionRetry, retry.ActionPostpone, retry.ActionDeadLetter}, settlement.Verdict.Action)

		limit := l.limit
		if limit > 0 {
			limit -= returnSize(l.source.Plan)
		}
		order := Order{Delivery: &d, State: identify(settlement.State, &d, d.MessageId == ""), Wait: settlement.Verdict.Wait, Replay: a.replay}
		p, state := copyOf(&order, limit)
		l.checkCopy(p, state, limit)
		l.checkTheirs(first, foreign, p, state, a.replay || round > 0)

		queue, wait := l.route(p, state)
		if state.Count == header.CountDead {
			require.Equal(t, "orders.dlq", queue)
			letter, _ := DeadLetter(&amqp091.Delivery{Headers: p.Headers}, "orders")
			require.Equal(t, state.Reason, letter.Reason)
			if calls == 0 {
				require.Contains(t, []retry.Reason{retry.ReasonExpired, retry.ReasonCrashed, retry.ReasonUndecodable, retry.ReasonTooLarge, retry.ReasonPostponedTooLong}, state.Reason)
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
	for range l.c.n(4) {
		output.Metadata[l.c.key()] = l.c.text()
	}
	p, err := Publish(amqp.DefaultMarshaler{}, output)
	require.NoError(l.t, err)
	for key := range p.Headers {
		require.False(l.t, header.IsOwn(key) || header.IsBroker(key) && key != "CC" && key != "BCC", key)
	}
}

// checkCopy: what is ours is readable text within its bounds, the frame is as small as it must be, and nothing steers the broker.
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
		own += headerSize(key, value)
	}
	require.LessOrEqual(t, own, wire.MaxOwnBytes)
	require.NotContains(t, p.Headers, header.Retire)
	require.NotContains(t, p.Headers, markKey)
	require.LessOrEqual(t, len(p.Headers)+16, maxEntries, "nobody could read it with what the broker adds")
	if limit > 0 {
		require.LessOrEqual(t, len(headerFrame(p)), limit)
	}
	require.Equal(t, "orders", p.Headers[header.Queue])
	require.Equal(t, strconv.Itoa(state.Count), p.Headers[header.Count])
	require.Empty(t, p.UserId)
	require.NotEqual(t, "amq.rabbitmq.reply-to", p.ReplyTo)
}

// checkTheirs: everything that is the publisher's is there, but for what is not republished.
func (l life) checkTheirs(first amqp091.Delivery, foreign amqp091.Table, p amqp091.Publishing, state wire.State, replay bool) {
	t := l.t
	lost := 0
	for key, value := range foreign {
		if header.IsOwn(key) || header.IsBroker(key) || header.IsPoison(key) && (replay || state.Count == header.CountDead) {
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
		ContentType: first.ContentType, ContentEncoding: first.ContentEncoding, DeliveryMode: first.DeliveryMode, Priority: first.Priority,
		CorrelationId: first.CorrelationId, ReplyTo: first.ReplyTo, MessageId: first.MessageId, Timestamp: first.Timestamp, Type: first.Type,
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
	var e encoder
	e.field(value)

	return e.String()
}

// route is where the broker puts a copy, and for how long: to one queue of the plan, which no header of a publisher chooses.
func (l life) route(p amqp091.Publishing, state wire.State) (queue string, wait time.Duration) {
	exchange, key := l.source.Plan.Route(state.Count)
	if exchange == "" {
		return key, 0
	}
	var found []string
	for _, b := range l.source.Plan.Bindings {
		if matches(b, exchange, key, p.Headers) {
			found = append(found, b.Queue)
		}
	}
	require.Len(l.t, found, 1, "one queue for each copy")
	for _, q := range l.source.Plan.Queues {
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
	headers["x-death"] = []any{amqp091.Table{"queue": queue, "reason": "expired", "exchange": "orders.retry", "count": int64(1)}}
	headers["x-first-death-queue"] = queue

	return amqp091.Delivery{
		Headers: headers, ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, DeliveryMode: p.DeliveryMode, Priority: p.Priority,
		CorrelationId: p.CorrelationId, ReplyTo: p.ReplyTo, MessageId: p.MessageId, Timestamp: p.Timestamp, Type: p.Type, AppId: p.AppId,
		Body: p.Body, RoutingKey: "orders",
	}
}

// FuzzFrame holds the computed sizes, and the encoder of these tests, against what amqp091-go writes.
func FuzzFrame(f *testing.F) {
	peer, full := newPeer(f, 0), fullState()
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &choices{data}
		d := c.delivery()
		limit := []int{unlimited, 6 << 10, 8 << 10, 16 << 10, 128 << 10}[c.n(5)]
		state := full
		if c.n(2) == 0 {
			state = wire.State{Count: 1, Delay: "30s", Queue: "orders", Error: c.text(), Attempts: 1}
		}
		p, _ := copyOf(&Order{Delivery: &d, State: state, Replay: c.n(2) == 1}, limit)

		frame, err := peer.encode(p)
		require.NoError(t, err)
		require.Len(t, frame, len(headerFrame(p)))
		require.LessOrEqual(t, len(frame), headerFrameSize(p))
		if limit != unlimited {
			require.LessOrEqual(t, len(frame), limit)
		}
		theirs := 0 // a publisher may use Watermill's keys for something of his own
		for key, value := range d.Headers {
			if header.IsPoison(key) && reflect.DeepEqual(value, p.Headers[key]) {
				theirs += headerSize(key, value)
			}
		}
		require.LessOrEqual(t, ours(p)-theirs, wire.MaxOwnBytes)
	})
}

// FuzzSieve: whatever a broker hands on, amqp091-go can read what comes out of the sieve, and nothing is taken without need.
func FuzzSieve(f *testing.F) {
	const limit = 4 << 10
	peer := newPeer(f, limit)
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &choices{data}
		var list encoder
		flags := uint16(1 << 13)
		if c.n(2) == 1 {
			flags |= 1 << 15
			list.short(c.short())
		}
		table := c.rawTable()
		list.long(table)
		if c.n(2) == 1 {
			flags |= 1 << 7
			list.short(c.short())
		}
		var header encoder
		header.number(uint16(60), uint16(0), uint64(0), flags)
		header.Write(list.Bytes())

		sifted, changed := sift(header.Bytes(), limit)
		if !changed {
			require.Equal(t, header.Bytes(), sifted)
		}
		require.LessOrEqual(t, len(sifted)+frameExtra, limit)

		d, err := peer.deliver(header.Bytes())
		if err != nil {
			t.Fatalf("%v: %q", err, header.Bytes())
		}
		lost := LostHeaders(d.Headers)
		require.Equal(t, changed, lost != "")
		if !changed && len(d.Headers) > 0 { // keys that are there twice are there once
			require.LessOrEqual(t, len(headerFrame(amqp091.Publishing{Headers: d.Headers})), len(header.Bytes())+frameExtra)
		}
	})
}

// rawTable makes an encoded table as no honest client would: nested too deep, with too many entries, too large, of unknown types, cut off.
func (c *choices) rawTable() []byte {
	var e encoder
	for range c.n(6) {
		e.short(c.short())
		switch c.n(8) {
		default:
			e.field(c.field(2))
		case 3:
			value := []byte{'V'}
			for range c.n(80) {
				var outer encoder
				if c.n(2) == 1 {
					outer.WriteByte('A')
					outer.long(value)
				} else {
					outer.WriteByte('F')
					outer.long(append([]byte{1, 'k'}, value...))
				}
				value = outer.Bytes()
			}
			e.Write(value)
		case 4:
			e.WriteByte('A')
			e.long(bytes.Repeat([]byte{'V'}, c.n(256)*64))
		case 5:
			e.WriteByte("AF"[c.n(2)])
			e.long(c.bytes(c.n(64)))
		case 6:
			e.Write(c.bytes(c.n(32)))
		case 7:
			e.WriteByte("ASxFl?L"[c.n(7)])
			e.number(uint32(c.uint64()))
		}
	}

	return e.Bytes()
}

// FuzzDeadLetter: what a dead letter tells is bounded and readable, whoever wrote it.
func FuzzDeadLetter(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &choices{data}
		d := c.delivery()
		if c.n(2) == 1 {
			d.Headers[header.Count] = "-1"
		}
		if c.n(2) == 1 {
			d.Headers[header.Death] = []any{amqp091.Table{
				"queue": "orders", "reason": c.field(0), "exchange": c.field(0), "routing-keys": c.field(2), "original-expiration": c.field(0), "time": c.field(0),
			}}
		}
		l, uuid := DeadLetter(&d, "orders")

		require.NotEmpty(t, l.Queue)
		for name, limited := range map[string]struct {
			text  string
			limit int
		}{
			"error": {l.Error, wire.MaxErrorBytes}, "type": {l.ErrorType, wire.MaxErrorTypeBytes}, "queue": {l.Queue, 255}, "topic": {l.Topic, 255},
			"handler": {l.Handler, 255}, "host": {l.Host, 255}, "exchange": {l.Exchange, 255}, "routing key": {l.RoutingKey, 255},
			"expiration": {l.Expiration, 255}, "user": {l.UserID, 255}, "removed": {l.Removed, wire.MaxRemovedBytes}, "uuid": {uuid, 255},
		} {
			require.True(t, utf8.ValidString(limited.text), "%s: %q", name, limited.text)
			require.LessOrEqual(t, len(limited.text), limited.limit, name)
		}
		if l.Reason != "" {
			require.Contains(t, retry.Reasons(), l.Reason)
		}
		require.LessOrEqual(t, len(l.History), 10)
		for _, a := range l.History {
			require.True(t, utf8.ValidString(a.Error+a.Type+string(a.Reason)))
		}
		require.GreaterOrEqual(t, l.Attempts, 0)
		require.GreaterOrEqual(t, l.Replays, 0)
		wait := pause(&d)
		require.True(t, wait >= shortestPause && wait <= longestPause)
	})
}

// What the sieve lets through and what it takes, at each limit of amqp091-go.
func TestSieve(t *testing.T) {
	const limit = 128 << 10
	nested := func(n int, inner any) (v any) {
		v = inner
		for i := range n {
			if i%2 == 0 {
				v = []any{v}
			} else {
				v = amqp091.Table{"k": v}
			}
		}

		return v
	}
	many := func(n int) amqp091.Table {
		t := amqp091.Table{}
		for i := range n {
			t[fmt.Sprintf("%04x", i)] = nil
		}

		return t
	}
	sized := func(n int) amqp091.Table { // with which the frame has n bytes
		rest := len(headerFrame(amqp091.Publishing{Headers: amqp091.Table{"big": "", "small": "kept"}, MessageId: "id"}))
		return amqp091.Table{"big": strings.Repeat("b", n-rest), "small": "kept"}
	}

	for name, test := range map[string]struct {
		headers amqp091.Table
		lost    string // begins with
		left    int    // headers
	}{
		"nothing special":    {amqp091.Table{"a": "b"}, "", 1},
		"as deep as can be":  {amqp091.Table{"deep": nested(32, "x"), "a": "b"}, "", 2},
		"too deep":           {amqp091.Table{"deep": nested(33, "x"), "a": "b"}, "deep", 1},
		"much too deep":      {amqp091.Table{"deep": nested(5000, "x"), "a": "b"}, "deep", 1},
		"as wide as can be":  {amqp091.Table{"wide": make([]any, 8192), "a": "b"}, "", 2},
		"too wide":           {amqp091.Table{"wide": make([]any, 8193), "a": "b"}, "wide", 1},
		"too wide, nested":   {amqp091.Table{"wide": []any{many(8193)}, "a": "b"}, "wide", 1},
		"as many as can be":  {many(8192), "", 8192},
		"too many":           {many(8193), "", 8191},
		"as large as can be": {sized(limit), "", 2},
		"too large":          {sized(limit + 1), "big", 1},
		"much too large":     {sized(limit + 1<<20), "big", 1},
		"each of them":       {amqp091.Table{"deep": nested(99, "x"), "wide": make([]any, 9999), "big": strings.Repeat("b", limit), "a": "b"}, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			peer := newPeer(t, limit)
			frame := headerFrame(amqp091.Publishing{Headers: test.headers, MessageId: "id"})
			d, err := peer.deliver(frame[frameStart : len(frame)-frameEnds])
			require.NoError(t, err)
			assert.Equal(t, "id", d.MessageId)

			lost := LostHeaders(d.Headers)
			assert.Len(t, d.Headers, test.left)
			if test.left == len(test.headers) {
				assert.Empty(t, lost)
				return
			}
			assert.NotEmpty(t, lost)
			assert.True(t, strings.HasPrefix(lost, test.lost), lost)
			assert.LessOrEqual(t, len(lost), wire.MaxRemovedBytes)
			assert.NotContains(t, d.Headers, markKey)

			// And the connection lives.
			frame = headerFrame(amqp091.Publishing{Headers: amqp091.Table{"next": int64(1)}})
			d, err = peer.deliver(frame[frameStart : len(frame)-frameEnds])
			require.NoError(t, err)
			assert.Equal(t, amqp091.Table{"next": int64(1)}, d.Headers)
		})
	}
}

// Frames come in pieces of any size, and many in one.
func TestSieveKeepsTheStream(t *testing.T) {
	header := headerFrame(amqp091.Publishing{Headers: amqp091.Table{"a": "b"}})
	var stream []byte
	for i := range 50 {
		stream = append(stream, frameOf(1, 1, bytes.Repeat([]byte("m"), i))...)
		stream = append(stream, header...)
		stream = append(stream, frameOf(3, 1, bytes.Repeat([]byte("b"), i*1000))...)
		stream = append(stream, frameOf(8, 0, nil)...)
	}
	require.Equal(t, uint16(60), binary.BigEndian.Uint16(header[frameStart:]))
	for _, size := range []int{1, 7, 4096, math.MaxInt} {
		peer := newPipe(t, stream, size)
		var got bytes.Buffer
		buffer := make([]byte, 5000)
		for got.Len() < len(stream) {
			n, err := peer.Read(buffer)
			require.NoError(t, err)
			got.Write(buffer[:n])
		}
		require.Equal(t, stream, got.Bytes())
		_, err := peer.Read(buffer)
		require.Error(t, err)
	}
}

// What comes without some of its headers is a dead letter, whatever was decided, and names them.
func TestCopyOfWhatHasLostHeaders(t *testing.T) {
	d := &amqp091.Delivery{Headers: amqp091.Table{"a": "b"}, Body: []byte("body")}
	p, state := copyOf(&Order{Delivery: d, State: wire.State{Count: 1, Delay: "1s", Queue: "orders", Error: "boom"}, Lost: "deep, wide"}, 128<<10)
	assert.Equal(t, retry.ReasonTooLarge, state.Reason)
	assert.Equal(t, "-1", p.Headers[header.Count])
	assert.NotContains(t, p.Headers, header.Delay)
	assert.Equal(t, "deep, wide", p.Headers[header.Removed])
	assert.Equal(t, "b", p.Headers["a"], "the others stay")
	assert.Equal(t, "boom", p.Headers[header.Error])
}

// A message with as many headers as amqp091-go reads has no room for ours: nobody could read its copy.
func TestCopyOfManyHeaders(t *testing.T) {
	for n, reason := range map[int]retry.Reason{mostHeaders: "", mostHeaders + 1: retry.ReasonTooLarge, maxEntries: retry.ReasonTooLarge} {
		headers := amqp091.Table{}
		for i := range n {
			headers[fmt.Sprintf("%04x", i)] = nil
		}
		for _, limit := range []int{unlimited, 128 << 10} {
			p, state := copyOf(&Order{Delivery: &amqp091.Delivery{Headers: headers}, State: fullState()}, limit)
			assert.Equal(t, reason, state.Reason, n)
			assert.LessOrEqual(t, len(p.Headers)+10, maxEntries)
			if reason != "" {
				assert.NotEmpty(t, p.Headers[header.Removed])
			}
		}
	}
}

// RabbitMQ refuses to publish the pseudo queue's own name, which a message of another protocol can carry.
func TestCopyDoesNotAskForDirectReplies(t *testing.T) {
	for given, want := range map[string]string{"amq.rabbitmq.reply-to": "", "amq.rabbitmq.reply-to.g1h2": "amq.rabbitmq.reply-to.g1h2", "answers": "answers"} {
		p, _ := copyOf(&Order{Delivery: &amqp091.Delivery{ReplyTo: given}}, unlimited)
		assert.Equal(t, want, p.ReplyTo)
	}
}
