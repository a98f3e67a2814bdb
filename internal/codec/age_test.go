package codec

import (
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/wire"
)

// What makes an age of these is tested in package wire.
func TestSetAge(t *testing.T) {
	withAge := func(d *amqp091.Delivery, kind wire.Kind, maxAge time.Duration, now time.Time) (s wire.State) {
		SetAge(&s, d, kind, maxAge, now)
		return s
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 500e6, time.UTC)
	stamped := now.Add(-3 * time.Second).Truncate(time.Second)
	since := stamped.Add(time.Second)

	got := withAge(&amqp091.Delivery{Timestamp: stamped, Expiration: "9000"}, wire.Fresh, time.Hour, now)
	assert.Equal(t, since, got.Since)
	assert.Equal(t, since.Add(9*time.Second), got.Deadline, "its own expiration")

	got = withAge(&amqp091.Delivery{Timestamp: stamped, Expiration: "9000"}, wire.Fresh, time.Second, now)
	assert.Equal(t, since.Add(time.Second), got.Deadline, "the policy's maximum age")

	got = withAge(&amqp091.Delivery{Timestamp: stamped}, wire.Replay, 0, now)
	assert.Equal(t, now, got.Since, "a replay begins anew")

	got = withAge(&amqp091.Delivery{Expiration: "99999999999999"}, wire.Fresh, 0, now)
	assert.Equal(t, now.Add(87600*time.Hour), got.Deadline, "no longer than the longest delay")
}
