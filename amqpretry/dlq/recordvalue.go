package dlq

import (
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
)

// A value of AMQP in JSON is a string for a string, and {"type": …, "value": …} for all others: so a header reads as
// people expect it, and keeps its type. What tools that compute with float64 would change is in quotes: integers beyond
// 2^53, NaN, the infinities, -0. Bytes that are not UTF-8 are {"type": …, "base64": …}.

// keyBase64 begins the name of a header that is not UTF-8, in base64; and of one that begins with it.
const keyBase64 = "base64:"

// maxShort is how long a short string of AMQP can be: a property, or the name of a header.
const maxShort = 255

// exact is up to where every integer is a float64.
const exact = 1 << 53

func appendString(out []byte, s string) []byte {
	out, ok := appendText(out, s)
	if ok {
		return out
	}
	out = append(out, `{"type":"string"`...)

	return append(appendBase64(out, "base64", []byte(s)), '}')
}

func appendBase64(out []byte, name string, data []byte) []byte {
	out = append(appendKey(out, name), '"')

	return append(base64.StdEncoding.AppendEncode(out, data), '"')
}

// appendValue appends a value that amqp091-go gives.
func appendValue(out []byte, value any) ([]byte, error) {
	switch v := value.(type) {
	case string:
		return appendString(out, v), nil
	case nil:
		return append(out, `{"type":"void"}`...), nil
	case bool:
		return append(strconv.AppendBool(appendTyped(out, "bool"), v), '}'), nil
	case int8:
		return appendInteger(out, "int8", int64(v)), nil
	case int16:
		return appendInteger(out, "int16", int64(v)), nil
	case int32:
		return appendInteger(out, "int32", int64(v)), nil
	case int64:
		return appendInteger(out, "int64", v), nil
	case uint8:
		return appendInteger(out, "uint8", int64(v)), nil
	case uint16:
		return appendInteger(out, "uint16", int64(v)), nil
	case uint32:
		return appendInteger(out, "uint32", int64(v)), nil
	case float32:
		return append(appendFloat(appendTyped(out, "float32"), float64(v), 32, uint64(math.Float32bits(v))), '}'), nil
	case float64:
		return append(appendFloat(appendTyped(out, "float64"), v, 64, math.Float64bits(v)), '}'), nil
	case amqp091.Decimal:
		return append(append(append(appendTyped(out, "decimal"), '"'), codec.HeaderText(v)...), '"', '}'), nil
	case time.Time:
		return append(appendTime(appendTyped(out, "time"), v), '}'), nil
	case []byte:
		if text, ok := appendText(appendTyped(out, "bytes"), v); ok {
			return append(text, '}'), nil
		}

		return append(appendBase64(append(out, `{"type":"bytes"`...), "base64", v), '}'), nil
	case []any:
		out = append(appendTyped(out, "array"), '[')
		for i, element := range v {
			if i > 0 {
				out = append(out, ',')
			}
			var err error
			if out, err = appendValue(out, element); err != nil {
				return nil, within("["+strconv.Itoa(i)+"]", err)
			}
		}

		return append(out, ']', '}'), nil
	case amqp091.Table:
		out, err := appendTable(appendTyped(out, "table"), v)
		return append(out, '}'), err
	}

	return nil, &RecordError{Wanted: "a value as amqp091-go reads it", Found: fmt.Sprintf("a %T", value)}
}

func appendTyped(out []byte, kind string) []byte {
	out = append(append(out, `{"type":"`...), kind...)

	return append(out, `","value":`...)
}

func appendInteger(out []byte, kind string, n int64) []byte {
	out = appendTyped(out, kind)
	if n >= -exact && n <= exact {
		return append(strconv.AppendInt(out, n, 10), '}')
	}

	return append(strconv.AppendInt(append(out, '"'), n, 10), '"', '}')
}

// appendFloat appends the shortest number that is the same. A NaN that is not the usual one comes with its bits:
// NaN:7ff8000000000000.
func appendFloat(out []byte, f float64, size int, bits uint64) []byte {
	switch {
	case math.IsNaN(f) && bits == usualNaN(size):
		return append(out, `"NaN"`...)
	case math.IsNaN(f):
		return fmt.Appendf(out, `"NaN:%0*x"`, size/4, bits)
	case math.IsInf(f, 1):
		return append(out, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(out, `"-Infinity"`...)
	case f == 0 && math.Signbit(f):
		return append(out, `"-0"`...)
	}

	format := byte('f')
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}

	return strconv.AppendFloat(out, f, format, -1, size)
}

func usualNaN(size int) uint64 {
	if size == 32 {
		return uint64(math.Float32bits(float32(math.NaN())))
	}

	return math.Float64bits(math.NaN())
}

// appendTime appends the seconds, which are all that AMQP has, as RFC 3339; as @seconds since 1970 where the year is
// none of its.
func appendTime(out []byte, t time.Time) []byte {
	if !tellable(t) {
		return append(strconv.AppendInt(append(out, '"', '@'), t.Unix(), 10), '"')
	}

	return append(t.UTC().AppendFormat(append(out, '"'), time.RFC3339), '"')
}

// appendTable appends an object, sorted by the names.
func appendTable(out []byte, table amqp091.Table) ([]byte, error) {
	keys := make([]string, 0, len(table))
	for key := range table {
		keys = append(keys, key)
	}
	slices.Sort(keys)

	out = append(out, '{')
	for _, key := range keys {
		if out[len(out)-1] != '{' {
			out = append(out, ',')
		}
		out, _ = appendText(out, keyText(key))
		out = append(out, ':')
		var err error
		if out, err = appendValue(out, table[key]); err != nil {
			return nil, within(member(key), err)
		}
	}

	return append(out, '}'), nil
}

func keyText(key string) string {
	if utf8.ValidString(key) && !strings.HasPrefix(key, keyBase64) {
		return key
	}

	return keyBase64 + base64.StdEncoding.EncodeToString([]byte(key))
}
