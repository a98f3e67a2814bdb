package dlq

import (
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// properties writes the properties of a message.
func (e *encoder) properties(p *amqp091.Publishing) {
	e.name("properties")
	e.out = append(e.out, '{')
	e.property("content_type", p.ContentType, "content_encoding", p.ContentEncoding)
	e.integer("delivery_mode", int(p.DeliveryMode))
	e.integer("priority", int(p.Priority))
	e.property("correlation_id", p.CorrelationId, "reply_to", p.ReplyTo, "expiration", p.Expiration,
		"message_id", p.MessageId)
	if !p.Timestamp.IsZero() {
		e.member("timestamp", timeText(p.Timestamp))
	}
	e.property("type", p.Type, "user_id", p.UserId, "app_id", p.AppId)
	e.out = append(e.out, '}')
}

// property is where a message has a property: a *string, *uint8 or *time.Time.
type property struct {
	name  string
	value any
}

// properties returns all properties of AMQP except the headers.
func properties(p *amqp091.Publishing) []property {
	return []property{
		{"content_type", &p.ContentType}, {"content_encoding", &p.ContentEncoding}, {"delivery_mode", &p.DeliveryMode},
		{"priority", &p.Priority}, {"correlation_id", &p.CorrelationId}, {"reply_to", &p.ReplyTo},
		{"expiration", &p.Expiration}, {"message_id", &p.MessageId}, {"timestamp", &p.Timestamp}, {"type", &p.Type},
		{"user_id", &p.UserId}, {"app_id", &p.AppId},
	}
}

func readProperties(value any, p *amqp091.Publishing) error {
	var fields []field
	for _, property := range properties(p) {
		var read func(any) error
		switch target := property.value.(type) {
		case *string:
			read = into(target, readShort)
		case *uint8:
			read = into(target, readInteger[uint8])
		case *time.Time:
			read = into(target, readTime)
		}
		fields = append(fields, field{property.name, read})
	}

	return readObject(value, fields)
}
