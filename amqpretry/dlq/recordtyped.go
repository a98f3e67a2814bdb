package dlq

import (
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// string reads what appendString appends.
func (r *jsonReader) string() (string, error) {
	if r.next() == '"' {
		return r.text()
	}
	probe := *r
	value, err := r.value()
	if err != nil {
		return "", err
	}
	text, ok := value.(string)
	if !ok {
		return "", probe.wrong("a string")
	}

	return text, nil
}

// short reads a string of at most 255 bytes.
func (r *jsonReader) short() (string, error) {
	text, err := r.string()
	if err == nil && len(text) > maxShort {
		err = &RecordError{Wanted: fmt.Sprintf("at most %d bytes", maxShort), Found: strconv.Itoa(len(text))}
	}

	return text, err
}

// value reads what appendValue appends.
func (r *jsonReader) value() (any, error) {
	switch r.next() {
	case '"':
		return r.text()
	case '{':
		return r.typed()
	}

	return nil, r.wrong(`a string, or an object such as {"type":"int32","value":5}`)
}

var typedFields = []string{"type", "value", "base64"}

// typed reads the value when it knows the type, which need not come first: jq -S sorts.
func (r *jsonReader) typed() (any, error) {
	kind, value, encoded := "", -1, -1
	err := r.fields(typedFields, func(name string) (err error) {
		r.next()
		switch name {
		case "type":
			kind, err = r.text()
			return err
		case "value":
			value = r.at
		default:
			encoded = r.at
		}

		return r.skip()
	})
	if err != nil {
		return nil, err
	}
	end := r.at
	defer func() { r.at = end }()

	switch {
	case value >= 0 && encoded >= 0:
		return nil, &RecordError{Wanted: "either value or base64", Found: "both"}
	case encoded >= 0:
		r.at = encoded
		return r.encoded(kind)
	case kind == "void" && value < 0:
		return nil, nil
	}
	read, known := readerOf(kind)
	switch {
	case !known:
		return nil, &RecordError{".type", "one of " + kindNames, strconv.Quote(excerpt(kind))}
	case value < 0:
		return nil, &RecordError{".value", "there", "nothing"}
	}
	r.at = value
	v, err := read(r)

	return v, within(".value", err)
}

const kindNames = "string, bytes, bool, int8, int16, int32, int64, uint8, uint16, uint32, float32, float64, decimal, time, array, table, void"

// encoded reads what is in base64.
func (r *jsonReader) encoded(kind string) (any, error) {
	if kind != "string" && kind != "bytes" {
		return nil, &RecordError{".type", "string or bytes, where there is base64", strconv.Quote(excerpt(kind))}
	}
	data, err := r.base64()
	if err != nil {
		return nil, within(".base64", err)
	}
	if kind == "bytes" {
		return data, nil
	}

	return string(data), nil
}

func (r *jsonReader) base64() ([]byte, error) {
	text, err := r.text()
	if err != nil {
		return nil, err
	}
	data, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, &RecordError{Wanted: "base64", Found: strconv.Quote(excerpt(text))}
	}

	return data, nil
}

// readerOf gives what reads the values of a type. A nil, and an array without elements, are what amqp091-go gives.
func readerOf(kind string) (read func(*jsonReader) (any, error), known bool) {
	switch kind {
	case "string":
		return func(r *jsonReader) (any, error) { return r.text() }, true
	case "bytes":
		return func(r *jsonReader) (any, error) {
			text, err := r.text()
			return []byte(text), err
		}, true
	case "bool":
		return func(r *jsonReader) (any, error) { return r.bool() }, true
	case "int8":
		return integer(kind, math.MinInt8, math.MaxInt8, func(n int64) any { return int8(n) }), true
	case "int16":
		return integer(kind, math.MinInt16, math.MaxInt16, func(n int64) any { return int16(n) }), true
	case "int32":
		return integer(kind, math.MinInt32, math.MaxInt32, func(n int64) any { return int32(n) }), true
	case "int64":
		return integer(kind, math.MinInt64, math.MaxInt64, func(n int64) any { return n }), true
	case "uint8":
		return integer(kind, 0, math.MaxUint8, func(n int64) any { return uint8(n) }), true
	case "uint16":
		return integer(kind, 0, math.MaxUint16, func(n int64) any { return uint16(n) }), true
	case "uint32":
		return integer(kind, 0, math.MaxUint32, func(n int64) any { return uint32(n) }), true
	case "float32":
		return float(kind, 32, func(f float64, bits uint64) any {
			if math.IsNaN(f) {
				return math.Float32frombits(uint32(bits))
			}

			return float32(f)
		}), true
	case "float64":
		return float(kind, 64, func(f float64, bits uint64) any {
			if math.IsNaN(f) {
				return math.Float64frombits(bits)
			}

			return f
		}), true
	case "decimal":
		return func(r *jsonReader) (any, error) { return r.decimal() }, true
	case "time":
		return func(r *jsonReader) (any, error) { return r.time() }, true
	case "array":
		return func(r *jsonReader) (any, error) { return r.values() }, true
	case "table":
		return func(r *jsonReader) (any, error) { return r.table() }, true
	case "void":
		return func(r *jsonReader) (any, error) { return nil, r.null() }, true
	}

	return nil, false
}

// numeral gives a number, or what is in the quotes.
func (r *jsonReader) numeral(wanted string) (string, error) {
	switch c := r.next(); {
	case c == '"':
		return r.text()
	case c == '-' || c >= '0' && c <= '9':
		return r.number()
	}

	return "", r.wrong(wanted)
}

func integer(kind string, least, most int64, of func(int64) any) func(*jsonReader) (any, error) {
	return func(r *jsonReader) (any, error) {
		n, err := r.integer(kind, least, most)
		return of(n), err
	}
}

func (r *jsonReader) integer(kind string, least, most int64) (int64, error) {
	probe := *r
	text, err := r.numeral(kind)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, probe.wrong(fmt.Sprintf("%s: an integer from %d to %d", kind, least, most))
	}

	return n, nil
}

func float(kind string, size int, of func(f float64, bits uint64) any) func(*jsonReader) (any, error) {
	return func(r *jsonReader) (any, error) {
		probe := *r
		text, err := r.numeral(kind)
		if err != nil {
			return nil, err
		}
		if hex, ok := strings.CutPrefix(text, "NaN:"); ok {
			bits, err := strconv.ParseUint(hex, 16, size)
			if err != nil || !isNaN(bits, size) {
				return nil, probe.wrong("the bits of a NaN")
			}

			return of(math.NaN(), bits), nil
		}

		f, err := strconv.ParseFloat(text, size)
		if err != nil {
			return nil, probe.wrong(kind)
		}

		return of(f, usualNaN(size)), nil
	}
}

func isNaN(bits uint64, size int) bool {
	if size == 32 {
		bits := uint32(bits)
		return bits&0x7f800000 == 0x7f800000 && bits&0x007fffff != 0
	}

	return math.IsNaN(math.Float64frombits(bits))
}

// decimal reads a number with as many digits behind the point as its scale.
func (r *jsonReader) decimal() (amqp091.Decimal, error) {
	probe := *r
	text, err := r.numeral("decimal")
	if err != nil {
		return amqp091.Decimal{}, err
	}
	whole, fraction, _ := strings.Cut(text, ".")
	value, err := strconv.ParseInt(whole+fraction, 10, 32)
	if err != nil || len(fraction) > math.MaxUint8 {
		return amqp091.Decimal{}, probe.wrong(`a decimal such as "1.50": a 32-bit integer with at most 255 digits behind the point`)
	}

	return amqp091.Decimal{Scale: uint8(len(fraction)), Value: int32(value)}, nil
}

func (r *jsonReader) time() (time.Time, error) {
	probe := *r
	text, err := r.text()
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
		return time.Time{}, probe.wrong("a time in whole seconds, as RFC 3339 or as @seconds since 1970")
	}

	return time.Unix(t.Unix(), 0), nil
}

func (r *jsonReader) values() ([]any, error) {
	var all []any
	err := r.array(func() error {
		value, err := r.value()
		all = append(all, value)

		return err
	})

	return all, err
}

func (r *jsonReader) table() (amqp091.Table, error) {
	table := amqp091.Table{}
	err := r.object(func(text string) error {
		key, err := keyOf(text)
		if err != nil {
			return err
		}
		if _, twice := table[key]; twice {
			return &RecordError{Wanted: "there once", Found: "it twice"}
		}
		table[key], err = r.value()

		return err
	})

	return table, err
}

func keyOf(text string) (string, error) {
	key := text
	if encoded, ok := strings.CutPrefix(text, keyBase64); ok {
		data, err := base64.StdEncoding.Strict().DecodeString(encoded)
		if err != nil {
			return "", &RecordError{Wanted: "a name of a header in base64 behind " + keyBase64, Found: strconv.Quote(excerpt(encoded))}
		}
		key = string(data)
	}
	if len(key) > maxShort {
		return "", &RecordError{Wanted: fmt.Sprintf("the name of a header, at most %d bytes", maxShort), Found: strconv.Itoa(len(key))}
	}

	return key, nil
}
