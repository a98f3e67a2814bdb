package dlq

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
)

// A string of AMQP is a JSON string, and any other value is {"type": …, "value": …}, so that a
// header is easy to read and keeps its type. Bytes that are not UTF-8 are {"type": …, "base64": …}.
// Quotes protect values that tools which compute with float64 would change: integers beyond 2^53,
// NaN, the infinities, -0.

// keyBase64 begins the name of a header that is not UTF-8, in base64, and of one that begins with
// keyBase64 itself.
const keyBase64 = "base64:"

// maxShort is the maximum length of a short string of AMQP: a property, or the name of a header.
const maxShort = 255

// exact is the limit up to which float64 represents every integer.
const exact = 1 << 53

type headerMember struct {
	name  string
	value any
}

// value writes a value that amqp091-go read.
func (e *encoder) value(value any) error {
	switch v := value.(type) {
	case string:
		e.text(v)
	case nil:
		e.out = append(e.out, `{"type":"void"}`...)
	case int64:
		if v < -exact || v > exact {
			e.typed("int64", strconv.FormatInt(v, 10))
		} else {
			e.out = fmt.Appendf(e.out, `{"type":"int64","value":%d}`, v)
		}
	case bool, int8, int16, int32, uint8, uint16, uint32:
		e.out = fmt.Appendf(e.out, `{"type":"%T","value":%v}`, v, v)
	case float32:
		return e.float("float32", v, float64(v), fmt.Sprintf("NaN:%08x", math.Float32bits(v)))
	case float64:
		return e.float("float64", v, v, fmt.Sprintf("NaN:%016x", math.Float64bits(v)))
	case amqp091.Decimal:
		e.typed("decimal", codec.HeaderText(v))
	case time.Time:
		e.typed("time", timeText(v))
	case []byte:
		if utf8.Valid(v) {
			e.typed("bytes", string(v))
		} else {
			e.encoded("bytes", v)
		}
	case []any:
		e.out = append(e.out, `{"type":"array","value":[`...)
		for i := range v {
			e.next()
			if err := e.value(v[i]); err != nil {
				return within(element(i), err)
			}
		}
		e.out = append(e.out, "]}"...)
	case amqp091.Table:
		e.out = append(e.out, `{"type":"table","value":`...)
		err := e.table(v)
		e.out = append(e.out, '}')

		return err
	default:
		return &RecordError{Wanted: "a value as amqp091-go reads it", Found: fmt.Sprintf("a %T", value)}
	}

	return nil
}

// table writes the members sorted by their names.
func (e *encoder) table(table amqp091.Table) error {
	first := len(e.members)
	for key, value := range table {
		name := key
		if !utf8.ValidString(key) || strings.HasPrefix(key, keyBase64) {
			name = keyBase64 + base64.StdEncoding.EncodeToString([]byte(key))
		}
		e.members = append(e.members, headerMember{name, value})
	}
	slices.SortFunc(e.members[first:], func(a, b headerMember) int { return strings.Compare(a.name, b.name) })
	defer func() { e.members = slices.Delete(e.members, first, len(e.members)) }()

	e.out = append(e.out, '{')
	for i := first; i < first+len(table); i++ {
		m := e.members[i] // a table in it appends to them
		e.next()
		e.out = append(appendQuoted(e.out, m.name), ':')
		if err := e.value(m.value); err != nil {
			return within(member(m.name), err)
		}
	}
	e.out = append(e.out, '}')

	return nil
}

// text writes a text of AMQP, which may be no UTF-8.
func (e *encoder) text(s string) {
	if utf8.ValidString(s) {
		e.out = appendQuoted(e.out, s)
	} else {
		e.encoded("string", []byte(s))
	}
}

// property is member for texts of AMQP.
func (e *encoder) property(pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			e.name(pairs[i])
			e.text(pairs[i+1])
		}
	}
}

// typed writes a value as a text, encoded one as base64.
func (e *encoder) typed(kind, value string) {
	e.out = append(append(append(e.out, `{"type":"`...), kind...), `","value":`...)
	e.out = append(appendQuoted(e.out, value), '}')
}

func (e *encoder) encoded(kind string, data []byte) {
	e.out = append(append(append(e.out, `{"type":"`...), kind...), `","base64":`...)
	e.base64(data)
	e.out = append(e.out, '}')
}

// float writes v, the float f: as a text if it is -0 or no JSON number. The text of a NaN is nan,
// which has its bits, if it is not Go's NaN.
func (e *encoder) float(kind string, v any, f float64, nan string) error {
	switch {
	case math.IsNaN(f) && nan != "NaN:7fc00000" && nan != "NaN:7ff8000000000001":
		e.typed(kind, nan)
	case math.IsNaN(f):
		e.typed(kind, "NaN")
	case math.IsInf(f, 1):
		e.typed(kind, "Infinity")
	case math.IsInf(f, -1):
		e.typed(kind, "-Infinity")
	case f == 0 && math.Signbit(f):
		e.typed(kind, "-0")
	default:
		text, err := json.Marshal(v)
		e.out = fmt.Appendf(e.out, `{"type":"%s","value":%s}`, kind, text)

		return err
	}

	return nil
}

// timeText returns a time in whole seconds, as AMQP has it: as RFC 3339, or as @seconds since 1970
// if RFC 3339 does not have the year.
func timeText(t time.Time) string {
	if !tellable(t) {
		return "@" + strconv.FormatInt(t.Unix(), 10)
	}

	return t.UTC().Format(time.RFC3339)
}

// readValue reads what value wrote.
func readValue(value any) (any, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case map[string]any:
		return readTyped(v)
	}

	return nil, wrong(value, `a string, or an object such as {"type":"int32","value":5}`)
}

func readTyped(object map[string]any) (any, error) {
	var kind string
	err := readObject(object, []field{{"type", into(&kind, readString)}, {"value", nil}, {"base64", nil}})
	if err != nil {
		return nil, err
	}
	read, known := kinds[kind]
	value, hasValue := object["value"]
	encoded, hasBase64 := object["base64"]

	switch {
	case !known:
		return nil, within(".type", wrong(kind, "one of "+strings.Join(slices.Sorted(maps.Keys(kinds)), ", ")))
	case hasValue && hasBase64:
		return nil, &RecordError{Wanted: "either value or base64", Found: "both"}
	case hasBase64 && kind == "bytes":
		data, err := readBase64(encoded)
		return data, within(".base64", err)
	case hasBase64 && kind == "string":
		data, err := readBase64(encoded)
		return string(data), within(".base64", err)
	case hasBase64:
		return nil, within(".type", wrong(kind, "string or bytes, where there is base64"))
	case !hasValue && kind != "void":
		return nil, &RecordError{".value", "there", "nothing"}
	}
	v, err := read(value)

	return v, within(".value", err)
}

// kinds has, by the name of a type, what reads its values.
var kinds map[string]func(any) (any, error)

func init() { // an array and a table read values of all kinds: the compiler takes that for a cycle above
	kinds = map[string]func(any) (any, error){
		"string": toAny(readString), "bytes": toAny(readBytes), "bool": toAny(readBool), "void": readNull,
		"int8": toAny(readInteger[int8]), "int16": toAny(readInteger[int16]), "int32": toAny(readInteger[int32]),
		"int64": toAny(readInteger[int64]), "uint8": toAny(readInteger[uint8]),
		"uint16": toAny(readInteger[uint16]), "uint32": toAny(readInteger[uint32]),
		"float32": readFloat(32, func(bits uint64) float32 { return math.Float32frombits(uint32(bits)) }),
		"float64": readFloat(64, math.Float64frombits), "decimal": toAny(readDecimal), "time": toAny(readTime),
		"array": toAny(readArray), "table": toAny(readTable),
	}
}

func toAny[T any](read func(any) (T, error)) func(any) (any, error) {
	return func(value any) (any, error) { return read(value) }
}

// readArray returns nil for an array without elements, as amqp091-go does.
func readArray(value any) (all []any, err error) {
	array, err := as[[]any](value, "an array")
	for i := range array {
		v, err := readValue(array[i])
		if err != nil {
			return nil, within(element(i), err)
		}
		all = append(all, v)
	}

	return all, err
}

func readTable(value any) (amqp091.Table, error) {
	object, err := as[map[string]any](value, "an object")
	if err != nil {
		return nil, err
	}
	table := make(amqp091.Table, len(object))
	for _, name := range slices.Sorted(maps.Keys(object)) {
		key, err := readKey(name)
		if _, twice := table[key]; twice && err == nil {
			err = errTwice()
		}
		if err == nil {
			table[key], err = readValue(object[name])
		}
		if err != nil {
			return nil, within(member(name), err)
		}
	}

	return table, nil
}

func readKey(name string) (string, error) {
	encoded, ok := strings.CutPrefix(name, keyBase64)
	if !ok {
		return short(name, nil)
	}
	data, err := readBase64(encoded)

	return short(string(data), err)
}

func readNull(value any) (any, error) {
	if value != nil {
		return nil, wrong(value, "null")
	}

	return nil, nil
}

// numeral returns a number as it is written, which may be in quotes; nothing for any other value.
func numeral(value any) string {
	if number, ok := value.(json.Number); ok {
		return number.String()
	}
	text, _ := value.(string)

	return text
}

func readInteger[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32](value any) (T, error) {
	n, err := strconv.ParseInt(numeral(value), 10, 64)
	if err != nil || int64(T(n)) != n {
		return 0, wrong(value, fmt.Sprintf("an integer that fits %T", T(0)))
	}

	return T(n), nil
}

// readFloat reads a float of 32 or 64 bits.
func readFloat[T float32 | float64](size int, of func(bits uint64) T) func(any) (any, error) {
	return func(value any) (any, error) {
		text := numeral(value)
		if hex, ok := strings.CutPrefix(text, "NaN:"); ok {
			bits, err := strconv.ParseUint(hex, 16, size)
			if f := of(bits); err == nil && math.IsNaN(float64(f)) {
				return f, nil
			}

			return nil, wrong(value, "the bits of a NaN")
		}
		f, err := strconv.ParseFloat(text, size)
		if err != nil {
			return nil, wrong(value, fmt.Sprintf("a number that fits float%d", size))
		}

		return T(f), nil
	}
}

// readDecimal reads a number with as many digits behind the point as its scale.
func readDecimal(value any) (amqp091.Decimal, error) {
	whole, fraction, _ := strings.Cut(numeral(value), ".")
	n, err := strconv.ParseInt(whole+fraction, 10, 32)
	if err != nil || len(fraction) > math.MaxUint8 {
		return amqp091.Decimal{}, wrong(value,
			`a decimal such as "1.50": a 32-bit integer with at most 255 digits behind the point`)
	}

	return amqp091.Decimal{Scale: uint8(len(fraction)), Value: int32(n)}, nil
}

func readTime(value any) (time.Time, error) {
	text, err := readString(value)
	if err != nil {
		return time.Time{}, err
	}
	if seconds, ok := strings.CutPrefix(text, "@"); ok {
		if n, err := strconv.ParseInt(seconds, 10, 64); err == nil {
			return time.Unix(n, 0), nil
		}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.Nanosecond() != 0 {
		return time.Time{}, wrong(value, "a time in whole seconds, as RFC 3339 or as @seconds since 1970")
	}

	return time.Unix(t.Unix(), 0), nil
}

func readBool(value any) (bool, error) { return as[bool](value, "true or false") }

func readString(value any) (string, error) { return as[string](value, "a string") }

func readBytes(value any) ([]byte, error) {
	text, err := readString(value)
	return []byte(text), err
}

func readBase64(value any) ([]byte, error) {
	text, err := readString(value)
	if err != nil {
		return nil, err
	}
	data, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, wrong(value, "base64")
	}

	return data, nil
}

// readText reads what text wrote.
func readText(value any) (string, error) {
	v, err := readValue(value)
	text, ok := v.(string)
	if err == nil && !ok {
		err = wrong(value, "a string")
	}

	return text, err
}

// readShort reads a property, or a routing key.
func readShort(value any) (string, error) { return short(readText(value)) }

// short refuses a text that is no short string of AMQP.
func short(text string, err error) (string, error) {
	if err == nil && len(text) > maxShort {
		err = wrong(len(text), fmt.Sprintf("at most %d bytes", maxShort))
	}

	return text, err
}
