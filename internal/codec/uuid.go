package codec

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/wire"
)

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

// MessageUUID is what a message without a UUID of its own goes by: empty before its first failure, if it has no message
// id.
func MessageUUID(s wire.State, d *amqp091.Delivery) string {
	if s.UUID != "" {
		return s.UUID
	}

	return d.MessageId
}
