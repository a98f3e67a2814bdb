package dlq

import (
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// propertiesJSON has the properties of a message in the order in which they are written.
type propertiesJSON struct {
	ContentType     any    `json:"content_type,omitempty"`
	ContentEncoding any    `json:"content_encoding,omitempty"`
	DeliveryMode    uint8  `json:"delivery_mode,omitempty"`
	Priority        uint8  `json:"priority,omitempty"`
	CorrelationID   any    `json:"correlation_id,omitempty"`
	ReplyTo         any    `json:"reply_to,omitempty"`
	Expiration      any    `json:"expiration,omitempty"`
	MessageID       any    `json:"message_id,omitempty"`
	Timestamp       string `json:"timestamp,omitempty"`
	Type            any    `json:"type,omitempty"`
	UserID          any    `json:"user_id,omitempty"`
	AppID           any    `json:"app_id,omitempty"`
}

func newPropertiesJSON(p *amqp091.Publishing) propertiesJSON {
	written := propertiesJSON{
		ContentType: optionalText(p.ContentType), ContentEncoding: optionalText(p.ContentEncoding),
		DeliveryMode: p.DeliveryMode, Priority: p.Priority, CorrelationID: optionalText(p.CorrelationId),
		ReplyTo: optionalText(p.ReplyTo), Expiration: optionalText(p.Expiration), MessageID: optionalText(p.MessageId),
		Type: optionalText(p.Type), UserID: optionalText(p.UserId), AppID: optionalText(p.AppId),
	}
	if !p.Timestamp.IsZero() {
		written.Timestamp = timeText(p.Timestamp)
	}

	return written
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
