package codec

import (
	"fmt"
	"time"

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
