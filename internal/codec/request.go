package codec

import (
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/wire"
)

// CopyRequest is a failed delivery with what its copy is to carry.
type CopyRequest struct {
	Delivery *amqp091.Delivery
	State    wire.State
	// Wait is how long the copy waits, where that is shorter than its delay; else 0.
	Wait time.Duration
	// Replay drops Watermill's poison keys, which an earlier death has left.
	Replay bool
	// LowerPriority tells that the copy waits with a lower priority than its own, if that is above
	// header.MaxWaitingPriority.
	LowerPriority bool
	// Lost are the names of headers that the delivery came without: see LostHeaders. Its copy is a dead letter.
	Lost string
}
