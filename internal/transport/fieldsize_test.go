package transport

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// encoder writes a content header frame by the grammar of AMQP 0-9-1 with RabbitMQ's field types, byte by byte and only what
// is set, to hold the computed sizes against.
type encoder struct{ bytes.Buffer }

func (e *encoder) number(values ...any) {
	for _, v := range values {
		if err := binary.Write(e, binary.BigEndian, v); err != nil {
			panic(err)
		}
	}
}

func (e *encoder) short(s string) {
	if len(s) > math.MaxUint8 {
		panic("not a short string: " + s)
	}
	e.number(uint8(len(s)))
	e.WriteString(s)
}

func (e *encoder) long(b []byte) {
	e.number(uint32(len(b)))
	e.Write(b)
}

func (e *encoder) table(t amqp091.Table) {
	var entries encoder
	for key, value := range t {
		entries.short(key)
		entries.field(value)
	}
	e.long(entries.Bytes())
}

func (e *encoder) field(value any) {
	switch v := value.(type) {
	case nil:
		e.WriteByte('V')
	case bool:
		e.number(byte('t'), v)
	case int8:
		e.number(byte('b'), v)
	case byte:
		e.number(byte('B'), v)
	case int16:
		e.number(byte('s'), v)
	case uint16:
		e.number(byte('u'), v)
	case int32:
		e.number(byte('I'), v)
	case uint32:
		e.number(byte('i'), v)
	case int:
		e.number(byte('I'), int32(v))
	case int64:
		e.number(byte('l'), v)
	case float32:
		e.number(byte('f'), v)
	case float64:
		e.number(byte('d'), v)
	case amqp091.Decimal:
		e.number(byte('D'), v.Scale, v.Value)
	case time.Time:
		e.number(byte('T'), v.Unix())
	case string:
		e.WriteByte('S')
		e.long([]byte(v))
	case []byte:
		e.WriteByte('x')
		e.long(v)
	case []any:
		var items encoder
		for _, item := range v {
			items.field(item)
		}
		e.WriteByte('A')
		e.long(items.Bytes())
	case amqp091.Table:
		e.WriteByte('F')
		e.table(v)
	default:
		panic("not of an AMQP type")
	}
}

// headerFrame encodes all of a message but its body.
func headerFrame(p amqp091.Publishing) []byte {
	var list encoder
	var flags uint16

	set := func(bit int, is bool, write func()) {
		if is {
			flags |= 1 << bit
			write()
		}
	}
	text := func(bit int, s string) { set(bit, s != "", func() { list.short(s) }) }

	text(15, p.ContentType)
	text(14, p.ContentEncoding)
	set(13, len(p.Headers) > 0, func() { list.table(p.Headers) })
	set(12, p.DeliveryMode > 0, func() { list.number(p.DeliveryMode) })
	set(11, p.Priority > 0, func() { list.number(p.Priority) })
	text(10, p.CorrelationId)
	text(9, p.ReplyTo)
	text(8, p.Expiration)
	text(7, p.MessageId)
	set(6, !p.Timestamp.IsZero(), func() { list.number(p.Timestamp.Unix()) })
	text(5, p.Type)
	text(4, p.UserId)
	text(3, p.AppId)

	var payload encoder
	payload.number(uint16(60), uint16(0), uint64(len(p.Body)), flags)
	payload.Write(list.Bytes())

	var frame encoder
	frame.number(byte(2), uint16(1))
	frame.long(payload.Bytes())
	frame.WriteByte(0xCE)

	return frame.Bytes()
}

// anyKey draws the name of a header.
func anyKey() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[a-z-]{1,12}`),
		rapid.Map(rapid.IntRange(1, 255), func(n int) string { return strings.Repeat("k", n) }),
		rapid.SampledFrom([]string{"", "\xff", "x-death", "CC", "x-delivery-count", "reason_poisoned", "amqpretry-v", "amqpretry-queue", "世"}),
	)
}

// anyField draws a header value of any AMQP type.
func anyField(depth int) *rapid.Generator[any] {
	scalars := []*rapid.Generator[any]{
		rapid.Just[any](nil),
		rapid.Bool().AsAny(), rapid.Byte().AsAny(), rapid.Int8().AsAny(), rapid.Int16().AsAny(), rapid.Uint16().AsAny(),
		rapid.Int32().AsAny(), rapid.Uint32().AsAny(), rapid.Int64().AsAny(), rapid.Float32().AsAny(), rapid.Float64().AsAny(),
		rapid.SampledFrom([]any{math.NaN(), math.Inf(-1), float32(math.Inf(1)), "\xff", []byte("\xff"), []byte(nil), ""}),
		rapid.String().AsAny(), rapid.SliceOf(rapid.Byte()).AsAny(),
		rapid.Custom(func(t *rapid.T) any {
			return amqp091.Decimal{Scale: rapid.Byte().Draw(t, "scale"), Value: rapid.Int32().Draw(t, "value")}
		}),
		rapid.Map(rapid.Int64(), func(s int64) any { return time.Unix(s, 0) }),
	}
	if depth == 0 {
		return rapid.OneOf(scalars...)
	}

	return rapid.OneOf(append(scalars,
		rapid.SliceOfN(anyField(depth-1), 0, 4).AsAny(),
		rapid.Map(anyTable(depth-1, 4), func(t amqp091.Table) any { return t }),
	)...)
}

func anyTable(depth, entries int) *rapid.Generator[amqp091.Table] {
	return rapid.Map(rapid.MapOfN(anyKey(), anyField(depth), 0, entries), func(m map[string]any) amqp091.Table { return m })
}

func anyShort() *rapid.Generator[string] {
	return rapid.Map(rapid.SampledFrom([]int{0, 0, 1, 20, 255}), func(n int) string { return strings.Repeat("p", n) })
}

func TestFieldSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := anyField(3).Draw(t, "value")

		var e encoder
		e.field(value)
		require.Equal(t, e.Len(), fieldSize(value))
	})
}

func TestFieldSizeOfEveryType(t *testing.T) {
	for _, value := range []any{
		nil, true, byte(1), int8(1), int16(1), uint16(1), int32(1), uint32(1), 1, int64(1), float32(1), float64(1),
		amqp091.Decimal{Scale: 1, Value: 1}, time.Unix(1, 0), "text", []byte("bytes"), []any{"x", int64(1), []any{}},
		amqp091.Table{"x": int64(1), "y": amqp091.Table{"z": nil}},
	} {
		require.NoError(t, amqp091.Table{"": value}.Validate(), "%T is one of amqp091's types", value)

		var e encoder
		e.field(value)
		assert.Equal(t, e.Len(), fieldSize(value), "%T", value)
	}
	assert.Zero(t, fieldSize(struct{}{}))
}

func TestHeaderFrameSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := amqp091.Publishing{
			Headers:      anyTable(2, 8).Draw(t, "headers"),
			DeliveryMode: 2, Priority: 1, Timestamp: time.Unix(1, 0),
			ContentType: anyShort().Draw(t, "content type"), ContentEncoding: anyShort().Draw(t, "encoding"),
			CorrelationId: anyShort().Draw(t, "correlation"), ReplyTo: anyShort().Draw(t, "reply"),
			Expiration: anyShort().Draw(t, "expiration"), MessageId: anyShort().Draw(t, "id"), Type: anyShort().Draw(t, "type"),
			UserId: anyShort().Draw(t, "user"), AppId: anyShort().Draw(t, "app"), Body: []byte("does not count"),
		}
		p.Headers["one"] = "at least"
		require.Equal(t, len(headerFrame(p)), headerFrameSize(p))

		p.DeliveryMode, p.Priority, p.Timestamp = 0, 0, time.Time{}
		require.Equal(t, len(headerFrame(p))+10, headerFrameSize(p), "what is not set is counted: never too little")
	})

	assert.Equal(t, len(headerFrame(amqp091.Publishing{}))+10+4, headerFrameSize(amqp091.Publishing{}))
}
