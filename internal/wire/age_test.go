package wire_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/wire"
)

func TestSetAge(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 500e6, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	stamp := func(d time.Duration) time.Time { return ago(d).Truncate(time.Second) }
	carried := func(expiration string) wire.Arrival { return wire.NewArrival("", "q", expiration, "", "") }
	second := time.Second
	never := time.Time{}

	for name, test := range map[string]struct {
		state           wire.State
		age             wire.Age
		since, deadline time.Time
	}{
		"nothing is said": {since: now, deadline: never},
		"maximum age":     {age: wire.Age{MaxAge: 5 * second}, since: now, deadline: now.Add(5 * second)},
		"from the timestamp": {
			age: wire.Age{Timestamp: stamp(3 * second), MaxAge: 5 * second}, since: stamp(2 * second),
			deadline: stamp(-3 * second),
		},
		"too old": {
			age: wire.Age{Timestamp: stamp(9 * second), MaxAge: 5 * second}, since: stamp(8 * second),
			deadline: stamp(3 * second),
		},
		"a timestamp has seconds": {age: wire.Age{Timestamp: stamp(0), MaxAge: 5 * second}, since: now,
			deadline: now.Add(5 * second)},
		"a timestamp of the future": {age: wire.Age{Timestamp: now.Add(9 * second), MaxAge: 5 * second}, since: now,
			deadline: now.Add(5 * second)},
		"a timestamp of 0": {age: wire.Age{Timestamp: time.Unix(0, 0), MaxAge: 5 * second}, since: now,
			deadline: now.Add(5 * second)},
		"from what it carries": {
			state: wire.State{Count: 1, Since: ago(4 * second)},
			age:   wire.Age{Timestamp: stamp(9 * second), Kind: wire.Retry, MaxAge: 5 * second},
			since: ago(4 * second), deadline: now.Add(second),
		},
		"a deadline of the past policy": {
			state: wire.State{Count: 1, Since: ago(4 * second), Deadline: ago(second)}, age: wire.Age{Kind: wire.Retry},
			since: ago(4 * second), deadline: never,
		},

		"expiration": {age: wire.Age{Expiration: "1500"}, since: now,
			deadline: now.Add(1500 * time.Millisecond)},
		"expiration and age": {age: wire.Age{Expiration: "1500", MaxAge: second}, since: now,
			deadline: now.Add(second)},
		"age and expiration": {age: wire.Age{Expiration: "1500", MaxAge: 2 * second}, since: now,
			deadline: now.Add(1500 * time.Millisecond)},
		"expiration from timestamp": {
			age: wire.Age{Expiration: "9000", Timestamp: stamp(3 * second)}, since: stamp(2 * second),
			deadline: stamp(-7 * second),
		},
		"a timestamp that the broker contradicts": {
			age: wire.Age{Expiration: "1000", Timestamp: stamp(time.Hour)}, since: now, deadline: now.Add(second),
		},
		"expiration, carried": {
			state: wire.State{Count: 1, Since: ago(second), Arrival: carried("3000")}, age: wire.Age{Kind: wire.Retry},
			since: ago(second), deadline: now.Add(2 * second),
		},
		"only the own one counts": {
			state: wire.State{Count: 1, Since: ago(second), Arrival: carried("")},
			age:   wire.Age{Expiration: "5", Kind: wire.Retry},
			since: ago(second), deadline: never,
		},
		"expiration of 0": {age: wire.Age{Expiration: "0"}, since: now, deadline: now.Add(time.Millisecond)},
		"an endless expiration": {age: wire.Age{Expiration: "18446744073709551615"}, since: now,
			deadline: now.Add(87600 * time.Hour)},
		"nonsense": {age: wire.Age{Expiration: "-5"}, since: now, deadline: never},

		"a replay begins anew": {
			state: wire.State{Replays: 1, Arrival: carried("3000")},
			age:   wire.Age{Timestamp: stamp(time.Hour), Kind: wire.Replay, MaxAge: 5 * second},
			since: now, deadline: now.Add(5 * second),
		},
		"from the future: forged": {
			state: wire.State{Count: 1, Since: now.Add(second), LastFailure: now.Add(second)},
			age:   wire.Age{Kind: wire.Retry, MaxAge: second},
			since: now, deadline: now.Add(second),
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.age.Now, test.age.Longest = now, 87600*time.Hour

			got := test.state
			got.SetAge(test.age)
			assert.Equal(t, test.since, got.Since, "since")
			assert.Equal(t, test.deadline, got.Deadline, "deadline")
			assert.False(t, got.LastFailure.After(now), "last failure")
		})
	}
}
