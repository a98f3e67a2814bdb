package fakebroker

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"reflect"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// The parts of a frame.
const (
	startBytes = 1 + 2 + 4 // type, channel, size
	endBytes   = 1
	extraBytes = startBytes + endBytes
	headerType = 2 // of a content header
)

// Encoder writes a content header frame by the grammar of AMQP 0-9-1 with RabbitMQ's field types,
// byte by byte and only what is set, to hold the computed sizes against.
type Encoder struct{ bytes.Buffer }

// Number writes numbers, big-endian.
func (e *Encoder) Number(values ...any) {
	for _, v := range values {
		if err := binary.Write(e, binary.BigEndian, v); err != nil {
			panic(err)
		}
	}
}

// Short writes a short string.
func (e *Encoder) Short(s string) {
	if len(s) > math.MaxUint8 {
		panic("not a short string: " + s)
	}
	e.Number(uint8(len(s)))
	e.WriteString(s)
}

// Long writes a long string.
func (e *Encoder) Long(b []byte) {
	e.Number(uint32(len(b)))
	e.Write(b)
}

func (e *Encoder) table(t amqp091.Table) {
	var entries Encoder
	for key, value := range t {
		entries.Short(key)
		entries.Field(value)
	}
	e.Long(entries.Bytes())
}

var numberTypes = map[reflect.Type]byte{
	reflect.TypeFor[bool](): 't', reflect.TypeFor[int8](): 'b', reflect.TypeFor[byte](): 'B',
	reflect.TypeFor[int16](): 's', reflect.TypeFor[uint16](): 'u', reflect.TypeFor[int32](): 'I',
	reflect.TypeFor[uint32](): 'i', reflect.TypeFor[int64](): 'l', reflect.TypeFor[float32](): 'f',
	reflect.TypeFor[float64](): 'd',
}

// Field writes a value with its type.
func (e *Encoder) Field(value any) {
	if v, ok := value.(int); ok {
		value = int32(v)
	}
	if kind, ok := numberTypes[reflect.TypeOf(value)]; ok {
		e.Number(kind, value)
		return
	}
	switch v := value.(type) {
	case nil:
		e.WriteByte('V')
	case amqp091.Decimal:
		e.Number(byte('D'), v.Scale, v.Value)
	case time.Time:
		e.Number(byte('T'), v.Unix())
	case string:
		e.WriteByte('S')
		e.Long([]byte(v))
	case []byte:
		e.WriteByte('x')
		e.Long(v)
	case []any:
		var items Encoder
		for _, item := range v {
			items.Field(item)
		}
		e.WriteByte('A')
		e.Long(items.Bytes())
	case amqp091.Table:
		e.WriteByte('F')
		e.table(v)
	default:
		panic("not of an AMQP type")
	}
}

// HeaderFrame encodes all of a message but its body.
func HeaderFrame(p amqp091.Publishing) []byte {
	var list Encoder
	var flags uint16

	set := func(bit int, is bool, write func()) {
		if is {
			flags |= 1 << bit
			write()
		}
	}
	text := func(bit int, s string) { set(bit, s != "", func() { list.Short(s) }) }

	text(15, p.ContentType)
	text(14, p.ContentEncoding)
	set(13, len(p.Headers) > 0, func() { list.table(p.Headers) })
	set(12, p.DeliveryMode > 0, func() { list.Number(p.DeliveryMode) })
	set(11, p.Priority > 0, func() { list.Number(p.Priority) })
	text(10, p.CorrelationId)
	text(9, p.ReplyTo)
	text(8, p.Expiration)
	text(7, p.MessageId)
	set(6, !p.Timestamp.IsZero(), func() { list.Number(p.Timestamp.Unix()) })
	text(5, p.Type)
	text(4, p.UserId)
	text(3, p.AppId)

	var payload Encoder
	payload.Number(uint16(60), uint16(0), uint64(len(p.Body)), flags)
	payload.Write(list.Bytes())

	return Frame(headerType, 1, payload.Bytes())
}

// Frame is a frame of this kind.
func Frame(kind byte, channel uint16, payload []byte) []byte {
	var e Encoder
	e.Number(kind, channel)
	e.Long(payload)
	e.WriteByte(0xCE)

	return e.Bytes()
}

func readFrame(r io.Reader) ([]byte, error) {
	var frame bytes.Buffer
	if _, err := io.CopyN(&frame, r, startBytes); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(frame.Bytes()[3:])
	_, err := io.CopyN(&frame, r, int64(size)+endBytes)

	return frame.Bytes(), err
}
