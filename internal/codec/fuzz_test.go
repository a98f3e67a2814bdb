package codec

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
	"github.com/amqpretry/watermill-retry/internal/testkit/hostile"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// The seeds of these are in testdata/fuzz, with what was found once.

// FuzzFrame holds the computed sizes, and the encoder of these tests, against what amqp091-go
// writes.
func FuzzFrame(f *testing.F) {
	peer, full := newReadablePeer(f, 0), fullState()
	f.Fuzz(func(t *testing.T, data []byte) {
		c := hostile.From(data)
		d := c.Delivery()
		limit := []int{unlimited, 6 << 10, 8 << 10, 16 << 10, 128 << 10}[c.N(5)]
		state := full
		if c.N(2) == 0 {
			state = wire.State{Count: 1, Delay: "30s", Queue: "orders", Error: c.Text(), Attempts: 1}
		}
		p, _ := CopyOf(&CopyRequest{Delivery: &d, State: state, Replay: c.N(2) == 1}, limit)

		frame, err := peer.Encode(p)
		require.NoError(t, err)
		require.Len(t, frame, len(fakebroker.HeaderFrame(p)))
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

// FuzzReadable: whatever a broker hands on, amqp091-go can read what is left of it, and nothing is
// taken without need.
func FuzzReadable(f *testing.F) {
	const limit = 4 << 10
	peer := newReadablePeer(f, limit)
	f.Fuzz(func(t *testing.T, data []byte) {
		c := hostile.From(data)
		var list fakebroker.Encoder
		flags := uint16(1 << 13)
		if c.N(2) == 1 {
			flags |= 1 << 15
			list.Short(c.Short())
		}
		table := rawTable(c)
		list.Long(table)
		if c.N(2) == 1 {
			flags |= 1 << 7
			list.Short(c.Short())
		}
		var header fakebroker.Encoder
		header.Number(uint16(60), uint16(0), uint64(0), flags)
		header.Write(list.Bytes())

		sifted, changed := sift(header.Bytes(), limit)
		if !changed {
			require.Equal(t, header.Bytes(), sifted)
		}
		require.LessOrEqual(t, len(sifted)+frameExtra, limit)

		d, err := peer.Deliver(header.Bytes())
		if err != nil {
			t.Fatalf("%v: %q", err, header.Bytes())
		}
		lost := LostHeaders(d.Headers)
		require.Equal(t, changed, lost != "")
		if !changed && len(d.Headers) > 0 { // keys that are there twice are there once
			require.LessOrEqual(t, len(fakebroker.HeaderFrame(amqp091.Publishing{Headers: d.Headers})),
				len(header.Bytes())+frameExtra)
		}
	})
}

// FuzzDeadLetter: what a dead letter tells is bounded and readable, whoever wrote it.
func FuzzDeadLetter(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		c := hostile.From(data)
		d := c.Delivery()
		if c.N(2) == 1 {
			d.Headers[header.Count] = "-1"
		}
		if c.N(2) == 1 {
			d.Headers[header.Death] = []any{amqp091.Table{
				"queue": "orders", "reason": c.Field(0), "exchange": c.Field(0), "routing-keys": c.Field(2),
				"original-expiration": c.Field(0), "time": c.Field(0),
			}}
		}
		l, uuid := DeadLetter(&d, "orders")

		require.NotEmpty(t, l.Queue)
		for name, limited := range map[string]struct {
			text  string
			limit int
		}{
			"error": {l.Error, wire.MaxErrorBytes}, "type": {l.ErrorType, wire.MaxErrorTypeBytes},
			"queue": {l.Queue, 255}, "topic": {l.Topic, 255},
			"handler": {l.Handler, 255}, "host": {l.Host, 255}, "exchange": {l.Exchange, 255},
			"routing key": {l.RoutingKey, 255},
			"expiration":  {l.Expiration, 255}, "user": {l.UserID, 255}, "removed": {l.Removed, wire.MaxRemovedBytes},
			"uuid": {uuid, 255},
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
		require.GreaterOrEqual(t, l.Calls, 0)
		require.GreaterOrEqual(t, l.Replays, 0)
	})
}

// What is let through and what is taken, at each limit of amqp091-go.
func TestReadable(t *testing.T) {
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
	many := tableOf
	sized := func(n int) amqp091.Table { // with which the frame has n bytes
		rest := len(fakebroker.HeaderFrame(amqp091.Publishing{Headers: amqp091.Table{"big": "", "small": "kept"},
			MessageId: "id"}))
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
		"each of them": {amqp091.Table{"deep": nested(99, "x"), "wide": make([]any, 9999),
			"big": strings.Repeat("b", limit), "a": "b"}, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			peer := newReadablePeer(t, limit)
			frame := fakebroker.HeaderFrame(amqp091.Publishing{Headers: test.headers, MessageId: "id"})
			d, err := peer.Deliver(frame[frameStart : len(frame)-frameEnds])
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
			frame = fakebroker.HeaderFrame(amqp091.Publishing{Headers: amqp091.Table{"next": int64(1)}})
			d, err = peer.Deliver(frame[frameStart : len(frame)-frameEnds])
			require.NoError(t, err)
			assert.Equal(t, amqp091.Table{"next": int64(1)}, d.Headers)
		})
	}
}

// Frames come in pieces of any size, and many in one.
func TestReadableKeepsTheStream(t *testing.T) {
	header := fakebroker.HeaderFrame(amqp091.Publishing{Headers: amqp091.Table{"a": "b"}})
	var stream []byte
	for i := range 50 {
		stream = append(stream, fakebroker.Frame(1, 1, bytes.Repeat([]byte("m"), i))...)
		stream = append(stream, header...)
		stream = append(stream, fakebroker.Frame(3, 1, bytes.Repeat([]byte("b"), i*1000))...)
		stream = append(stream, fakebroker.Frame(8, 0, nil)...)
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
	p, state := CopyOf(&CopyRequest{Delivery: d, State: wire.State{Count: 1, Delay: "1s", Queue: "orders",
		Error: "boom"}, Lost: "deep, wide"}, 128<<10)
	assert.Equal(t, retry.ReasonTooLarge, state.Reason)
	assert.Equal(t, "-1", p.Headers[header.Count])
	assert.NotContains(t, p.Headers, header.Delay)
	assert.Equal(t, "deep, wide", p.Headers[header.Removed])
	assert.Equal(t, "b", p.Headers["a"], "the others stay")
	assert.Equal(t, "boom", p.Headers[header.Error])
}

// A message with as many headers as amqp091-go reads has no room for ours: nobody could read its
// copy.
func TestCopyOfManyHeaders(t *testing.T) {
	for n, reason := range map[int]retry.Reason{mostHeaders: "", mostHeaders + 1: retry.ReasonTooLarge,
		maxEntries: retry.ReasonTooLarge} {
		headers := tableOf(n)
		for _, limit := range []int{unlimited, 128 << 10} {
			p, state := CopyOf(&CopyRequest{Delivery: &amqp091.Delivery{Headers: headers}, State: fullState()}, limit)
			assert.Equal(t, reason, state.Reason, n)
			assert.LessOrEqual(t, len(p.Headers)+10, maxEntries)
			if reason != "" {
				assert.NotEmpty(t, p.Headers[header.Removed])
			}
		}
	}
}

// RabbitMQ refuses to publish the pseudo queue's own name, which a message of another protocol can
// carry.
func TestCopyDoesNotAskForDirectReplies(t *testing.T) {
	for given, want := range map[string]string{"amq.rabbitmq.reply-to": "",
		"amq.rabbitmq.reply-to.g1h2": "amq.rabbitmq.reply-to.g1h2", "answers": "answers"} {
		p := copyOf(&amqp091.Delivery{ReplyTo: given}, wire.State{})
		assert.Equal(t, want, p.ReplyTo)
	}
}

// tableOf has n headers.
func tableOf(n int) amqp091.Table {
	t := amqp091.Table{}
	for i := range n {
		t[fmt.Sprintf("%04x", i)] = nil
	}

	return t
}

// rawTable makes an encoded table as no honest client would: nested too deep, with too many
// entries, too large, of unknown types, cut off.
func rawTable(c *hostile.Choices) []byte {
	var e fakebroker.Encoder
	for range c.N(6) {
		e.Short(c.Short())
		switch c.N(8) {
		default:
			e.Field(c.Field(2))
		case 3:
			value := []byte{'V'}
			for range c.N(80) {
				var outer fakebroker.Encoder
				if c.N(2) == 1 {
					outer.WriteByte('A')
					outer.Long(value)
				} else {
					outer.WriteByte('F')
					outer.Long(append([]byte{1, 'k'}, value...))
				}
				value = outer.Bytes()
			}
			e.Write(value)
		case 4:
			e.WriteByte('A')
			e.Long(bytes.Repeat([]byte{'V'}, c.N(256)*64))
		case 5:
			e.WriteByte("AF"[c.N(2)])
			e.Long(c.Bytes(c.N(64)))
		case 6:
			e.Write(c.Bytes(c.N(32)))
		case 7:
			e.WriteByte("ASxFl?L"[c.N(7)])
			e.Number(uint32(c.Uint64()))
		}
	}

	return e.Bytes()
}

// newReadablePeer connects amqp091-go through what makes all headers readable for it.
func newReadablePeer(t testing.TB, limit int) *fakebroker.Peer {
	t.Helper()

	return fakebroker.NewPeer(t, limit, func(client net.Conn) net.Conn {
		s := Readable(client)
		s.LimitFrames(limit)

		return s
	})
}

// newPipe reads a stream that comes in pieces of at most so many bytes.
func newPipe(t *testing.T, stream []byte, size int) *ReadableConn {
	t.Helper()
	client, broker := net.Pipe()
	t.Cleanup(func() { _ = client.Close() })
	go func() {
		defer func() { _ = broker.Close() }()
		for len(stream) > 0 {
			n := min(size, len(stream))
			if _, err := broker.Write(stream[:n]); err != nil {
				return
			}
			stream = stream[n:]
		}
	}()

	return Readable(client)
}

// What follows the close of a channel does not reach amqp091-go, which would close the connection.
// A channel that is opened again, and all others, go on.
func TestReadable_ClosedChannels(t *testing.T) {
	method := func(channel byte, class, method byte) []byte {
		return []byte{methodType, 0, channel, 0, 0, 0, 6, 0, class, 0, method, 'x', channel, 0xCE}
	}
	var sent, want []byte
	for _, frame := range []struct {
		bytes []byte
		isIn  bool
	}{
		{method(1, 60, 30), true}, {method(1, 20, 40), true}, {method(2, 60, 30), true},
		{method(1, 60, 30), false}, {method(1, 60, 60), false}, {method(1, 20, 40), true}, {method(1, 20, 41), true},
		{[]byte{3, 0, 1, 0, 0, 0, 1, 'b', 0xCE}, true}, // a body, which amqp091-go drops
		{method(2, 20, 41), true}, {method(2, 60, 30), false}, {method(0, 10, 50), true},
		{method(1, 20, 11), true}, {method(1, 60, 30), true}, {method(2, 60, 30), false},
		{[]byte{methodType, 0, 2, 0, 0, 0, 1, 'm', 0xCE}, true}, // which it refuses
	} {
		sent = append(sent, frame.bytes...)
		if frame.isIn {
			want = append(want, frame.bytes...)
		}
	}
	for _, size := range []int{1, 5, len(sent)} {
		got, err := io.ReadAll(newPipe(t, sent, size))
		require.NoError(t, err)
		assert.Equal(t, want, got, "in pieces of %d", size)
	}
}
