package codec

import (
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// SetAge completes the state of a delivery that arrived just now with where its age counts from, and with its deadline.
func SetAge(s *wire.State, d *amqp091.Delivery, kind wire.Kind, maxAge time.Duration, now time.Time) {
	s.SetAge(wire.Age{
		Expiration: d.Expiration, Timestamp: d.Timestamp, Kind: kind, MaxAge: maxAge, Longest: config.MaxDelay, Now: now,
	})
}
