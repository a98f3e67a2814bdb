package codec

import (
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// A letter of Watermill's own poison queue keeps what it tells when it is moved or imported.
func TestMovedOfKeepsWatermillsKeys(t *testing.T) {
	d := &amqp091.Delivery{Expiration: "60000", Headers: amqp091.Table{
		"reason_poisoned": "boom", "topic_poisoned": "orders", "handler_poisoned": "charge",
		"subscriber_poisoned": "amqp.Subscriber",
	}}
	p, fits := MovedOf(d, "orders", 0)
	assert.True(t, fits)
	for key, value := range d.Headers {
		assert.Equal(t, value, p.Headers[key], key)
	}
}

// What is sent on without being read is what would be written if it were.
func TestReplayHeadersAreThoseOfTheState(t *testing.T) {
	state := fullState()
	state.Count, state.Delay, state.Reason, state.Unknown = header.CountDead, "", retry.ReasonExhausted, nil
	state.History = state.History[:2]
	state.Arrival = wire.NewArrival("e", "k", "1", "u", `["a"]`)
	d := &amqp091.Delivery{Headers: withHeaders(amqp091.Table{"own": int64(1)}, state)}

	quick, fits := ReplayOf(d, Replay{MainQueue: state.Queue, Target: "other", Run: "run", Edits: "[]",
		Canary: "1 run q.lock"}, 0)
	assert.True(t, fits)
	slow := stateOfDead(d, state.Queue).ForReplay("other", "run", "1 run q.lock")
	slow.Edits = "[]"
	want := withHeaders(amqp091.Table{"own": int64(1)}, slow)
	quick.Headers[header.ID] = "id"
	assert.Equal(t, want, quick.Headers)
}

// A message that waits for an exact delay has a lower priority, and its own in a header. Sent on by
// hand it has its own again.
func TestReplayOfAWaitingMessageRestoresItsPriority(t *testing.T) {
	policy := config.Policy{Strategy: config.StrategyLadder, Delays: []time.Duration{time.Second}}
	plan, err := topology.New("orders", policy, topology.Names{})
	require.NoError(t, err)
	for own, waits := range map[uint8]uint8{9: header.MaxWaitingPriority, 3: 3, 0: 0} {
		waiting, _ := CopyOf(&CopyRequest{
			Delivery: &amqp091.Delivery{Priority: own, Headers: amqp091.Table{}, RoutingKey: "orders"},
			State:    wire.State{Queue: "orders", Count: 1, Delay: "1s"}, LowerPriority: true,
		}, 0)
		_, key := plan.Route(1, time.Second, &waiting)
		assert.Equal(t, waits, waiting.Priority)
		waiting.Headers["x-death"] = []any{amqp091.Table{"queue": "a level", "reason": "expired"}}
		sent, fits := ReplayOf(&amqp091.Delivery{Priority: waiting.Priority, Headers: waiting.Headers, RoutingKey: key},
			Replay{MainQueue: "orders", Target: "orders", Run: "run"}, 0)
		assert.True(t, fits)
		assert.Equal(t, own, sent.Priority)
		assert.NotContains(t, sent.Headers, header.Priority)
	}
}
