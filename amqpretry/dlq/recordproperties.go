package dlq

import (
	"math"

	"github.com/rabbitmq/amqp091-go"
)

const timestamp = "timestamp"

// propertyNames are those of AMQP, but for the headers.
var propertyNames = []string{
	"content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration", "message_id", timestamp,
	"type", "user_id", "app_id",
}

// textProperty is where a property is that is text; nil for another.
func textProperty(p *amqp091.Publishing, name string) *string {
	switch name {
	case "content_type":
		return &p.ContentType
	case "content_encoding":
		return &p.ContentEncoding
	case "correlation_id":
		return &p.CorrelationId
	case "reply_to":
		return &p.ReplyTo
	case "expiration":
		return &p.Expiration
	case "message_id":
		return &p.MessageId
	case "type":
		return &p.Type
	case "user_id":
		return &p.UserId
	case "app_id":
		return &p.AppId
	}

	return nil
}

// numberProperty is where a property is that is a number; nil for another.
func numberProperty(p *amqp091.Publishing, name string) *uint8 {
	switch name {
	case "delivery_mode":
		return &p.DeliveryMode
	case "priority":
		return &p.Priority
	}

	return nil
}

func appendProperties(out []byte, p *amqp091.Publishing) []byte {
	out = append(out, '{')
	for _, name := range propertyNames {
		if text := textProperty(p, name); text != nil {
			out = textField(out, name, *text)
		} else if n := numberProperty(p, name); n != nil {
			out = numberField(out, name, int(*n))
		} else if !p.Timestamp.IsZero() {
			out = appendTime(appendKey(out, name), p.Timestamp)
		}
	}

	return append(out, '}')
}

func (r *jsonReader) properties(p *amqp091.Publishing) error {
	return r.fields(propertyNames, func(name string) (err error) {
		if text := textProperty(p, name); text != nil {
			*text, err = r.short()
		} else if number := numberProperty(p, name); number != nil {
			var n int64
			n, err = r.integer("uint8", 0, math.MaxUint8)
			*number = uint8(n)
		} else {
			p.Timestamp, err = r.time()
		}

		return err
	})
}
