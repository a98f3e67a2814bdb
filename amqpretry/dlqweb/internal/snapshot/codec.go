package snapshot

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/retry"
)

// mostAtOnce is for how many headers there is room from the beginning.
const mostAtOnce = 64

// errDamaged is what a record says that is not as it was written.
var errDamaged = errors.New("a dead letter in the temporary file is damaged")

// encode appends a whole dead letter. It is read by the same process only, so the format may change
// at any time.
func encode(out []byte, l *dlq.DeadLetter) ([]byte, error) {
	e := encoder{out: out}
	e.bytes(l.Message.Body) // first: see bodyOf
	e.number(int64(l.Position))
	e.texts(l.UUID, string(l.Reason), l.Error, l.ErrorType, l.Queue, l.Topic, l.Handler, l.Host, l.Exchange,
		l.RoutingKey, l.Expiration, l.UserID, l.Trace, l.Removed, l.CameBy.Exchange, l.CameBy.RoutingKey, l.Unreadable)
	e.number(int64(l.Calls))
	e.number(int64(l.Replays))
	e.times(l.FirstFailure, l.LastFailure, l.Since, l.Deadline)
	e.number(int64(len(l.History)))
	for _, call := range l.History {
		e.number(int64(call.Number))
		e.times(call.At)
		e.texts(call.Error, call.Type, string(call.Reason))
	}
	var edits, wait []byte
	if len(l.Edits) > 0 {
		edits, e.err = json.Marshal(l.Edits)
	}
	if l.Wait != nil && e.err == nil {
		wait, e.err = json.Marshal(l.Wait)
	}
	e.bytes(edits)
	e.bytes(wait)

	m := &l.Message
	e.texts(m.ContentType, m.ContentEncoding, m.CorrelationId, m.ReplyTo, m.Expiration, m.MessageId, m.Type, m.UserId,
		m.AppId)
	e.out = append(e.out, m.DeliveryMode, m.Priority)
	e.times(m.Timestamp)
	e.value(m.Headers)
	e.texts(otherTexts(m.Headers))

	return e.out, e.err
}

// otherTexts are header values as dlq.Filter compares them, where they are not in the record as
// they are.
func otherTexts(headers amqp091.Table) string {
	var all []string
	for _, value := range headers {
		if _, is := value.(string); !is {
			all = append(all, codec.HeaderText(value))
		}
	}

	return strings.Join(all, "\x00")
}

func decode(in []byte) (*dlq.DeadLetter, error) {
	d := decoder{in: in, all: string(in)}
	body := d.bytes()
	l := &dlq.DeadLetter{Position: int(d.number())}
	l.Message.Body = body
	var reason string
	d.texts(&l.UUID, &reason, &l.Error, &l.ErrorType, &l.Queue, &l.Topic, &l.Handler, &l.Host, &l.Exchange,
		&l.RoutingKey, &l.Expiration, &l.UserID, &l.Trace, &l.Removed, &l.CameBy.Exchange, &l.CameBy.RoutingKey,
		&l.Unreadable)
	l.Reason = retry.Reason(reason)
	l.Calls, l.Replays = int(d.number()), int(d.number())
	d.times(&l.FirstFailure, &l.LastFailure, &l.Since, &l.Deadline)
	for range d.number() {
		call := retry.FailedCall{Number: int(d.number())}
		d.times(&call.At)
		d.texts(&call.Error, &call.Type, &reason)
		call.Reason = retry.Reason(reason)
		l.History = append(l.History, call)
		if d.err != nil {
			return nil, d.err
		}
	}
	if edits := d.bytes(); len(edits) > 0 && d.err == nil {
		d.err = json.Unmarshal(edits, &l.Edits)
	}
	if wait := d.bytes(); len(wait) > 0 && d.err == nil {
		d.err = json.Unmarshal(wait, &l.Wait)
	}

	m := &l.Message
	d.texts(&m.ContentType, &m.ContentEncoding, &m.CorrelationId, &m.ReplyTo, &m.Expiration, &m.MessageId, &m.Type,
		&m.UserId, &m.AppId)
	m.DeliveryMode, m.Priority = d.byte(), d.byte()
	d.times(&m.Timestamp)
	m.Headers, _ = d.value().(amqp091.Table)
	_ = d.text()
	if d.err == nil && len(d.in) > 0 {
		d.err = errDamaged
	}

	return l, d.err
}

// bodyOf is the body in a record.
func bodyOf(record []byte) ([]byte, error) {
	d := decoder{in: record}
	body := d.bytes()

	return body, d.err
}

// The kinds of header values that amqp091-go reads.
const (
	kindNil byte = iota
	kindTrue
	kindFalse
	kindInt8
	kindInt16
	kindInt32
	kindInt64
	kindUint8
	kindUint16
	kindUint32
	kindUint64
	kindFloat32
	kindFloat64
	kindDecimal
	kindText
	kindBytes
	kindTime
	kindArray
	kindTable
)

type encoder struct {
	out []byte
	err error
}

func (e *encoder) number(n int64) { e.out = binary.AppendVarint(e.out, n) }

func (e *encoder) texts(texts ...string) {
	for _, text := range texts {
		e.number(int64(len(text)))
		e.out = append(e.out, text...)
	}
}

// bytes tells no bytes from an empty text.
func (e *encoder) bytes(b []byte) {
	if b == nil {
		e.number(-1)
		return
	}
	e.number(int64(len(b)))
	e.out = append(e.out, b...)
}

// times keeps the instant and the offset of the zone.
func (e *encoder) times(times ...time.Time) {
	for _, t := range times {
		if t.IsZero() {
			e.out = append(e.out, 0)
			continue
		}
		_, offset := t.Zone()
		e.out = append(e.out, 1)
		e.number(t.Unix())
		e.number(int64(t.Nanosecond()))
		e.number(int64(offset))
	}
}

func (e *encoder) kind(kind byte, n int64) {
	e.out = append(e.out, kind)
	e.number(n)
}

func (e *encoder) value(value any) {
	switch v := value.(type) {
	case nil:
		e.out = append(e.out, kindNil)
	case bool:
		kind := kindFalse
		if v {
			kind = kindTrue
		}
		e.out = append(e.out, kind)
	case int8:
		e.kind(kindInt8, int64(v))
	case int16:
		e.kind(kindInt16, int64(v))
	case int32:
		e.kind(kindInt32, int64(v))
	case int64:
		e.kind(kindInt64, v)
	case uint8:
		e.kind(kindUint8, int64(v))
	case uint16:
		e.kind(kindUint16, int64(v))
	case uint32:
		e.kind(kindUint32, int64(v))
	case uint64:
		e.kind(kindUint64, int64(v)) //nolint:gosec // and back
	case float32:
		e.kind(kindFloat32, int64(math.Float32bits(v)))
	case float64:
		e.kind(kindFloat64, int64(math.Float64bits(v))) //nolint:gosec // and back
	case amqp091.Decimal:
		e.kind(kindDecimal, int64(v.Value))
		e.out = append(e.out, v.Scale)
	case string:
		e.out = append(e.out, kindText)
		e.texts(v)
	case []byte:
		e.out = append(e.out, kindBytes)
		e.bytes(v)
	case time.Time:
		e.out = append(e.out, kindTime)
		e.times(v)
	case []any:
		e.kind(kindArray, int64(len(v)))
		for _, element := range v {
			e.value(element)
		}
	case amqp091.Table:
		if v == nil {
			e.out = append(e.out, kindNil)
			return
		}
		e.kind(kindTable, int64(len(v)))
		for name, element := range v {
			e.texts(name)
			e.value(element)
		}
	default:
		e.err = errors.Join(e.err, fmt.Errorf("a header has the type %T", value))
	}
}

// decoder makes all texts parts of one, as there are many short ones.
type decoder struct {
	in  []byte // the rest
	all string
	err error
}

func (d *decoder) fail() { d.in, d.err = nil, errDamaged }

func (d *decoder) number() int64 {
	n, size := binary.Varint(d.in)
	if size <= 0 {
		d.fail()
		return 0
	}
	d.in = d.in[size:]

	return n
}

func (d *decoder) byte() byte {
	if len(d.in) == 0 {
		d.fail()
		return 0
	}
	b := d.in[0]
	d.in = d.in[1:]

	return b
}

func (d *decoder) take(n int64) []byte {
	if n < 0 || n > int64(len(d.in)) {
		d.fail()
		return nil
	}
	taken := d.in[:n:n]
	d.in = d.in[n:]

	return taken
}

func (d *decoder) text() string {
	n := d.number()
	at := len(d.all) - len(d.in)

	return d.all[at : at+len(d.take(n))]
}

func (d *decoder) texts(texts ...*string) {
	for _, text := range texts {
		*text = d.text()
	}
}

func (d *decoder) bytes() []byte {
	n := d.number()
	if n == -1 {
		return nil
	}

	return d.take(n)
}

func (d *decoder) times(times ...*time.Time) {
	for _, t := range times {
		if d.byte() == 0 {
			*t = time.Time{}
			continue
		}
		*t = time.Unix(d.number(), d.number())
		if offset := int(d.number()); offset == 0 {
			*t = t.UTC()
		} else {
			*t = t.In(time.FixedZone("", offset))
		}
	}
}

//nolint:gosec // numbers that were written from these types
func (d *decoder) value() any {
	switch kind := d.byte(); kind {
	case kindTrue, kindFalse:
		return kind == kindTrue
	case kindInt8:
		return int8(d.number())
	case kindInt16:
		return int16(d.number())
	case kindInt32:
		return int32(d.number())
	case kindInt64:
		return d.number()
	case kindUint8:
		return uint8(d.number())
	case kindUint16:
		return uint16(d.number())
	case kindUint32:
		return uint32(d.number())
	case kindUint64:
		return uint64(d.number())
	case kindFloat32:
		return math.Float32frombits(uint32(d.number()))
	case kindFloat64:
		return math.Float64frombits(uint64(d.number()))
	case kindDecimal:
		value := int32(d.number())
		return amqp091.Decimal{Value: value, Scale: d.byte()}
	case kindText:
		return d.text()
	case kindBytes:
		return d.bytes()
	case kindTime:
		var t time.Time
		d.times(&t)
		return t
	case kindArray:
		array := []any{}
		for range d.number() {
			array = append(array, d.value())
			if d.err != nil {
				break
			}
		}
		return array
	case kindTable:
		n := d.number()
		table := make(amqp091.Table, max(0, min(n, mostAtOnce)))
		for range n {
			name := d.text()
			if table[name] = d.value(); d.err != nil {
				break
			}
		}
		return table
	default:
		return nil
	}
}
