package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
)

// What makes an age of these is tested in package wire.
func TestArrive_Age(t *testing.T) {
	dead := map[string]any{header.Version: header.FormatVersion, header.Queue: "orders", header.Count: "-1"}
	now := time.Date(2026, 1, 2, 3, 4, 5, 500e6, time.UTC)
	stamped := now.Add(-3 * time.Second).Truncate(time.Second)
	since := stamped.Add(time.Second)

	for name, test := range map[string]struct {
		message         Arriving
		maxAge          time.Duration
		since, deadline time.Time
	}{
		"its own expiration": {Arriving{Timestamp: stamped, Expiration: "9000"}, time.Hour, since,
			since.Add(9 * time.Second)},
		"the policy's maximum age": {Arriving{Timestamp: stamped, Expiration: "9000"}, time.Second, since,
			since.Add(time.Second)},
		"a replay begins anew":           {Arriving{Timestamp: stamped, Headers: dead}, 0, now, time.Time{}},
		"no longer than a delay can be":  {Arriving{Expiration: "99999999999999"}, 0, now, now.Add(87600 * time.Hour)},
		"neither a timestamp nor an age": {Arriving{}, 0, now, time.Time{}},
	} {
		policy := config.Policy{MaxAge: test.maxAge}.WithDefaults()
		a := Arrive("orders", &policy, &test.message, now)
		assert.Equal(t, test.since, a.State.Since, name)
		assert.Equal(t, test.deadline, a.State.Deadline, name)
		assert.Equal(t, test.message.Headers != nil, a.Replay, name)
	}
}

func TestArrive_Off(t *testing.T) {
	policy := config.Policy{Mode: config.ModeOff}.WithDefaults()
	assert.Zero(t, Arrive("orders", &policy, &Arriving{Redelivered: true, Deliveries: 1000}, time.Now()))
}
