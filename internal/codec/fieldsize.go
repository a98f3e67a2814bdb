package codec

import (
	"fmt"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// MaxShortString is what AMQP has room for in a property or the key of a header. Over a longer one
// amqp091-go closes the whole connection.
//
// Upstream: a name or key of more than 255 bytes ends the connection; rabbitmq/amqp091-go#354;
// amqp091-go 1.13 to 1.16; TestDelayPublish_LongNames, TestConsumerTagOfAnyLength,
// TestNewRefusesNames; remove when amqp091-go refuses only the publish.
const MaxShortString = 255

// headerFrameSize is the size of the content header frame in which a message's properties and
// headers travel. It cannot be split: one above the negotiated frame size makes the broker close
// the whole connection.
func headerFrameSize(p amqp091.Publishing) int {
	const frame = 7 + 1         // type, channel, size; end
	const fixed = 2 + 2 + 8 + 2 // class, weight, body size, property flags
	const numbers = 1 + 1 + 8   // delivery mode, priority, timestamp: counted whether they are set or not
	const table = 4             // length
	size := frame + fixed + numbers + table

	for _, s := range []string{
		p.ContentType, p.ContentEncoding, p.CorrelationId, p.ReplyTo, p.Expiration, p.MessageId, p.Type, p.UserId,
		p.AppId,
	} {
		if s != "" {
			size += 1 + len(s)
		}
	}
	for key, value := range p.Headers {
		size += headerSize(key, value)
	}

	return size
}

// SizeInMemory is about what a delivery takes in memory, where many small headers take several
// times what they are on the wire.
func SizeInMemory(d *amqp091.Delivery) int {
	return 512 + len(d.Body) + sizeInMemory(d.Headers)
}

func sizeInMemory(value any) int {
	switch v := value.(type) {
	case string:
		return 32 + len(v)
	case []byte:
		return 40 + len(v)
	case []any:
		size := 40
		for _, element := range v {
			size += sizeInMemory(element)
		}
		return size
	case amqp091.Table:
		size := 64
		for key, element := range v {
			size += 48 + len(key) + sizeInMemory(element)
		}
		return size
	default:
		return 24
	}
}

func headerSize(key string, value any) int { return 1 + len(key) + fieldSize(value) }

// fieldSize is the encoded size of a header value with its type.
func fieldSize(value any) int {
	switch v := value.(type) {
	case nil:
		return 1
	case bool, byte, int8:
		return 1 + 1
	case int16, uint16:
		return 1 + 2
	case int, int32, uint32, float32:
		return 1 + 4
	case int64, float64, time.Time:
		return 1 + 8
	case amqp091.Decimal:
		return 1 + 1 + 4
	case string:
		return 1 + 4 + len(v)
	case []byte:
		return 1 + 4 + len(v)
	case []any:
		size := 1 + 4
		for _, e := range v {
			size += fieldSize(e)
		}

		return size
	case amqp091.Table:
		size := 1 + 4
		for key, e := range v {
			size += headerSize(key, e)
		}

		return size
	}

	return 0 // not an AMQP type: publishing refuses it
}

// Part is a part of a message that is larger than the protocol allows.
type Part struct {
	Name string
	// Size in bytes, and the most that it can have.
	Size, Most int
}

// TooLarge finds the first part of a message that is too large for its connection, where a header
// frame can have limit bytes, 0 for no limit. It is nil if there is none.
func TooLarge(p amqp091.Publishing, limit int) *Part {
	for _, property := range [...]struct{ name, value string }{
		{"content type", p.ContentType}, {"content encoding", p.ContentEncoding}, {"correlation id", p.CorrelationId},
		{"reply-to", p.ReplyTo}, {"message id", p.MessageId}, {"type", p.Type}, {"user id", p.UserId},
		{"app id", p.AppId},
		{"expiration", p.Expiration},
	} {
		if len(property.value) > MaxShortString {
			return &Part{"property " + property.name, len(property.value), MaxShortString}
		}
	}
	if key := longKey(p.Headers); key != "" {
		return &Part{fmt.Sprintf("name of the header %q…", key[:20]), len(key), MaxShortString}
	}
	if size := headerFrameSize(p); limit > 0 && size > limit {
		return &Part{"headers", size, limit}
	}

	return nil
}

// longKey finds the key of a header that is too long.
func longKey(value any) string {
	switch v := value.(type) {
	case []any:
		for _, element := range v {
			if key := longKey(element); key != "" {
				return key
			}
		}
	case amqp091.Table:
		for key, element := range v {
			if len(key) > MaxShortString {
				return key
			}
			if key := longKey(element); key != "" {
				return key
			}
		}
	}

	return ""
}
