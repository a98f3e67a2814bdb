package transport

import (
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/wire"
)

func TestWithAge(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 500e6, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	stamp := func(d time.Duration) time.Time { return ago(d).Truncate(time.Second) }
	second := time.Second
	never := time.Time{}

	for name, test := range map[string]struct {
		state           wire.State
		delivery        amqp091.Delivery
		kind            wire.Kind
		maxAge          time.Duration
		since, deadline time.Time
	}{
		"nothing is said":               {since: now, deadline: never},
		"maximum age":                   {maxAge: 5 * second, since: now, deadline: now.Add(5 * second)},
		"from the timestamp":            {delivery: amqp091.Delivery{Timestamp: stamp(3 * second)}, maxAge: 5 * second, since: stamp(2 * second), deadline: stamp(-3 * second)},
		"too old":                       {delivery: amqp091.Delivery{Timestamp: stamp(9 * second)}, maxAge: 5 * second, since: stamp(8 * second), deadline: stamp(3 * second)},
		"a timestamp has seconds":       {delivery: amqp091.Delivery{Timestamp: stamp(0)}, maxAge: 5 * second, since: now, deadline: now.Add(5 * second)},
		"a timestamp of the future":     {delivery: amqp091.Delivery{Timestamp: now.Add(9 * second)}, maxAge: 5 * second, since: now, deadline: now.Add(5 * second)},
		"a timestamp of 0":              {delivery: amqp091.Delivery{Timestamp: time.Unix(0, 0)}, maxAge: 5 * second, since: now, deadline: now.Add(5 * second)},
		"from what it carries":          {state: wire.State{Count: 1, Since: ago(4 * second)}, delivery: amqp091.Delivery{Timestamp: stamp(9 * second)}, kind: wire.Retry, maxAge: 5 * second, since: ago(4 * second), deadline: now.Add(second)},
		"a deadline of the past policy": {state: wire.State{Count: 1, Since: ago(4 * second), Deadline: ago(second)}, kind: wire.Retry, since: ago(4 * second), deadline: never},

		"expiration":                              {delivery: amqp091.Delivery{Expiration: "1500"}, since: now, deadline: now.Add(1500 * time.Millisecond)},
		"expiration and age":                      {delivery: amqp091.Delivery{Expiration: "1500"}, maxAge: second, since: now, deadline: now.Add(second)},
		"age and expiration":                      {delivery: amqp091.Delivery{Expiration: "1500"}, maxAge: 2 * second, since: now, deadline: now.Add(1500 * time.Millisecond)},
		"expiration from timestamp":               {delivery: amqp091.Delivery{Expiration: "9000", Timestamp: stamp(3 * second)}, since: stamp(2 * second), deadline: stamp(-7 * second)},
		"a timestamp that the broker contradicts": {delivery: amqp091.Delivery{Expiration: "1000", Timestamp: stamp(time.Hour)}, since: now, deadline: now.Add(second)},
		"expiration, carried":                     {state: wire.State{Count: 1, Since: ago(second), Arrival: wire.NewArrival("", "q", "3000", "", "")}, kind: wire.Retry, since: ago(second), deadline: now.Add(2 * second)},
		"only the own one counts":                 {state: wire.State{Count: 1, Since: ago(second), Arrival: wire.NewArrival("", "q", "", "", "")}, delivery: amqp091.Delivery{Expiration: "5"}, kind: wire.Retry, since: ago(second), deadline: never},
		"expiration of 0":                         {delivery: amqp091.Delivery{Expiration: "0"}, since: now, deadline: now.Add(time.Millisecond)},
		"an endless expiration":                   {delivery: amqp091.Delivery{Expiration: "18446744073709551615"}, since: now, deadline: now.Add(87600 * time.Hour)},
		"nonsense":                                {delivery: amqp091.Delivery{Expiration: "-5"}, since: now, deadline: never},

		"a replay begins anew": {state: wire.State{Replays: 1, Arrival: wire.NewArrival("", "q", "3000", "", "")}, delivery: amqp091.Delivery{Timestamp: stamp(time.Hour)}, kind: wire.Replay, maxAge: 5 * second, since: now, deadline: now.Add(5 * second)},
	} {
		t.Run(name, func(t *testing.T) {
			got := withAge(test.state, &test.delivery, test.kind, test.maxAge, now)
			assert.Equal(t, test.since, got.Since, "since")
			assert.Equal(t, test.deadline, got.Deadline, "deadline")
		})
	}
}
