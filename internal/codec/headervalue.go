package codec

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"
)

// HeaderType is the type of a header value, as an export of dead letters calls it.
func HeaderType(value any) string {
	switch value.(type) {
	case nil:
		return "void"
	case []byte:
		return "bytes"
	case time.Time:
		return "time"
	case amqp091.Decimal:
		return "decimal"
	case amqp091.Table:
		return "table"
	case []any:
		return "array"
	default: // string, bool, int8 to int64, uint8 to uint32, float32, float64
		return fmt.Sprintf("%T", value)
	}
}

// HeaderText spells a header value of any AMQP type as text: numbers in decimal, times as RFC 3339,
// bytes as they are or in base64 where they are no text, arrays and tables as JSON, the void as the
// empty string.
func HeaderText(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case []byte:
		if utf8.Valid(v) {
			return string(v)
		}

		return base64.StdEncoding.EncodeToString(v)
	case bool:
		return strconv.FormatBool(v)
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case amqp091.Decimal:
		return decimalText(v)
	case []any, amqp091.Table:
		text, err := json.Marshal(plain(v))
		if err != nil {
			return ""
		}

		return string(text)
	}

	return fmt.Sprint(value)
}

// plain makes a header value one that JSON can carry.
func plain(value any) any {
	switch v := value.(type) {
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = plain(v[i])
		}

		return out
	case amqp091.Table:
		out := make(map[string]any, len(v))
		for key := range v {
			out[key] = plain(v[key])
		}

		return out
	case []byte, time.Time, amqp091.Decimal:
		return HeaderText(v)
	case float32:
		return plain(float64(v))
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return HeaderText(v)
		}
	}

	return value
}

func decimalText(d amqp091.Decimal) string {
	digits := strconv.FormatInt(int64(d.Value), 10)

	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}

	scale := int(d.Scale)
	if scale == 0 {
		return sign + digits
	}
	if pad := scale + 1 - len(digits); pad > 0 {
		digits = strings.Repeat("0", pad) + digits
	}

	return sign + digits[:len(digits)-scale] + "." + digits[len(digits)-scale:]
}

// CloneTable is a copy that shares nothing with a table; an empty one of nil.
func CloneTable(t amqp091.Table) amqp091.Table {
	clone := make(amqp091.Table, len(t))
	for key, value := range t {
		clone[key] = cloneValue(value)
	}

	return clone
}

func cloneValue(value any) any {
	switch v := value.(type) {
	case amqp091.Table:
		return CloneTable(v)
	case []any:
		clone := make([]any, len(v))
		for i, element := range v {
			clone[i] = cloneValue(element)
		}

		return clone
	case []byte:
		return bytes.Clone(v)
	default:
		return value
	}
}
