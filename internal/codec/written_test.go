package codec

import (
	"encoding/json"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/retry"
)

// written are messages as an earlier version has published them by RabbitMQ 4.3.6: one that waits
// for its retry, a dead letter, and one that was replayed. They lie in queues for as long as they
// like, so whatever comes later has to read them.
func written(t *testing.T) map[string]*amqp091.Delivery {
	t.Helper()
	text, err := os.ReadFile("testdata/written.json")
	require.NoError(t, err)
	var all map[string]struct {
		Headers map[string]string
		Body    string
	}
	require.NoError(t, json.Unmarshal(text, &all))
	deliveries := map[string]*amqp091.Delivery{}
	for name, one := range all {
		d := &amqp091.Delivery{Headers: amqp091.Table{}, Body: []byte(one.Body)}
		for key, value := range one.Headers {
			d.Headers[key] = value
		}
		deliveries[name] = d
	}

	return deliveries
}

// arrive reads a message of a queue that may have waited in a retry queue.
func arrive(d *amqp091.Delivery, queue, waited string) engine.Arrival {
	policy := config.Policy{MaxAge: 48 * time.Hour}.WithDefaults()

	return engine.Arrive(queue, &policy, &engine.Arriving{
		Headers: d.Headers, Waited: waited,
		IsRetryQueue: func(name, delay string) bool { return name == queue+".retry."+delay },
	}, time.Date(2026, 11, 23, 13, 0, 26, 0, time.UTC))
}

func TestReadsWhatWasWritten_Retry(t *testing.T) {
	d := written(t)["waiting"]
	a := arrive(d, "waiting", "waiting.retry.1h")
	at := time.Date(2026, 11, 23, 12, 0, 26, 499e6, time.UTC)

	assert.Equal(t, 1, a.State.Count)
	assert.Equal(t, "1h", a.State.Delay)
	assert.Equal(t, 1, a.State.Attempts)
	assert.Equal(t, at.Add(-time.Millisecond), a.State.Since)
	assert.Equal(t, at.Add(48*time.Hour-time.Millisecond), a.State.Deadline)
	assert.Equal(t, []retry.FailedCall{{Number: 1, At: at, Error: "charge: card declined: ümläut",
		Type: "*errors.errorString"}}, a.State.History)
	assert.Equal(t, "waiting", a.State.Arrival.RoutingKey)

	assert.Zero(t, arrive(d, "another", "waiting.retry.1h").State.Count, "another queue's")
	assert.Zero(t, arrive(d, "waiting", "").State.Count, "it has waited nowhere")
}

func TestReadsWhatWasWritten_DeadLetter(t *testing.T) {
	d := written(t)["dead"]
	l, _ := DeadLetter(d, "dead")
	first, last := time.Date(2026, 11, 23, 12, 0, 26, 500e6, time.UTC), time.Date(2026, 11, 23, 12, 0, 26, 613e6,
		time.UTC)

	assert.Equal(t, retry.DeadLetter{
		Queue: "dead", Topic: "dead", Handler: "charge-dead", Host: "host", Reason: retry.ReasonExhausted, Calls: 2,
		Error: "charge: card declined: ümläut", ErrorType: "*errors.errorString", FirstFailure: first,
		LastFailure: last, Since: first.Add(-time.Millisecond), RoutingKey: "dead",
		History: []retry.FailedCall{
			{Number: 1, At: first, Error: "charge: card declined: ümläut", Type: "*errors.errorString"},
			{Number: 2, At: last, Error: "charge: card declined: ümläut", Type: "*errors.errorString"},
		},
	}, l)

	moved, fits := MovedOf(d, "dead", 0)
	require.True(t, fits)
	assert.Equal(t, d.Headers, moved.Headers, "a move changes nothing")
}

func TestReadsWhatWasWritten_Replay(t *testing.T) {
	a := arrive(written(t)["replayed"], "replayed", "")
	assert.True(t, a.Replay)
	assert.Equal(t, 1, a.State.Replays)
	assert.Equal(t, 1, a.State.Attempts, "all that were made")
	assert.Zero(t, a.State.Count)
}

// What this version writes has the same keys and spelling, so that earlier ones read it.
func TestWritesAsBefore(t *testing.T) {
	before := written(t)
	a := arrive(before["waiting"], "waiting", "waiting.retry.1h")
	again := a.State.Headers(strconv.Itoa(1))
	for key, value := range before["waiting"].Headers {
		if header.IsOwn(key) && key != header.ID {
			assert.Equal(t, value, again[key], key)
		}
	}
	for key := range again {
		assert.Contains(t, before["waiting"].Headers, key, "a new key")
	}
}
