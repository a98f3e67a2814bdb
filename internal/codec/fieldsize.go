package codec

import (
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// headerFrameSize is the size of the content header frame in which a message's properties and headers travel. It cannot
// be split: one above the negotiated frame size makes the broker close the whole connection.
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

// SizeInMemory is about what a delivery takes in memory, where many small headers take several times what they are on
// the wire.
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
