package codec

import (
	"fmt"
	"maps"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/header"
)

// maxShortString is what AMQP has room for in a property or the key of a header. Over a longer one amqp091-go closes the
// whole connection.
//
// Upstream: a name or key of more than 255 bytes ends the connection; rabbitmq/amqp091-go#354; amqp091-go 1.13 to 1.16;
// TestDelayPublish_LongNames, TestConsumerTagOfAnyLength, TestNewRefusesNames; remove when amqp091-go refuses only the
// publish.
const maxShortString = 255

// Persistent makes a message that is stored on disk, with an id, of one that was marshaled with [Publish]. Its headers are
// its own.
func Persistent(p amqp091.Publishing, id string) amqp091.Publishing {
	if p.Headers = maps.Clone(p.Headers); p.Headers == nil {
		p.Headers = amqp091.Table{}
	}
	p.Headers[header.ID] = id
	p.DeliveryMode = amqp091.Persistent

	return p
}

// HasCopies tells whether a message goes to further queues, by its headers.
func HasCopies(p amqp091.Publishing) bool {
	return p.Headers[header.BrokerCC] != nil || p.Headers[header.BrokerBCC] != nil
}

// Part is a part of a message that is larger than the protocol allows.
type Part struct {
	Name string
	// Size in bytes, and the most that it can have.
	Size, Most int
}

// TooLarge finds the first part of a message that is too large for its connection, where a header frame can have limit
// bytes, 0 for no limit. It is nil if there is none.
func TooLarge(p amqp091.Publishing, limit int) *Part {
	for _, property := range [...]struct{ name, value string }{
		{"content type", p.ContentType}, {"content encoding", p.ContentEncoding}, {"correlation id", p.CorrelationId},
		{"reply-to", p.ReplyTo}, {"message id", p.MessageId}, {"type", p.Type}, {"user id", p.UserId},
		{"app id", p.AppId},
		{"expiration", p.Expiration},
	} {
		if len(property.value) > maxShortString {
			return &Part{"property " + property.name, len(property.value), maxShortString}
		}
	}
	if key := longKey(p.Headers); key != "" {
		return &Part{fmt.Sprintf("name of the header %q…", key[:20]), len(key), maxShortString}
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
			if len(key) > maxShortString {
				return key
			}
			if key := longKey(element); key != "" {
				return key
			}
		}
	}

	return ""
}
