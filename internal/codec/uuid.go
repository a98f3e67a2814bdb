package codec

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// UUIDHeader is where Watermill's publishers put the UUID of a message, if they are not told another.
const UUIDHeader = "_watermill_message_uuid"

// Identify gives a message that came without a Watermill UUID one that stays the same over all of its attempts.
func Identify(s wire.State, d *amqp091.Delivery, nameless bool) wire.State {
	if nameless && s.UUID == "" {
		s.UUID = d.MessageId
		if s.UUID == "" {
			s.UUID = watermill.NewUUID()
		}
	}

	return s
}

// Identity is what a message goes by in all of its attempts: empty for one that no copy was made of, if its publisher
// gave it no id.
func Identity(headers amqp091.Table, messageID string) string {
	for _, key := range []string{UUIDHeader, header.UUID} {
		if uuid := HeaderText(headers[key]); uuid != "" {
			return uuid
		}
	}

	return messageID
}

// MessageUUID is what a message without a UUID of its own goes by: empty before its first failure, if it has no message
// id.
func MessageUUID(s wire.State, d *amqp091.Delivery) string {
	if s.UUID != "" {
		return s.UUID
	}

	return d.MessageId
}
