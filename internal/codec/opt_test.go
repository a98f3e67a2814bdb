package codec

import (
	"maps"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// farTime is year 9999 in milliseconds: RabbitMQ 4.4 confirms it, and then the queue is down for
// good.
const farTime = int64(253402300799000)

// No copy gives orders to the broker, whoever makes it, and none forgets what the publisher had
// set.
func TestCopiesKeepOptHeadersAside(t *testing.T) {
	const kept = `{"x-opt-delivery-time":"253402300799000","x-opt-other":"true"}`
	opt := amqp091.Table{"x-opt-delivery-time": farTime, "x-opt-other": true, "own": int64(1)}
	with := func(states ...wire.State) *amqp091.Delivery {
		d := &amqp091.Delivery{RoutingKey: "orders", Headers: maps.Clone(opt)}
		for _, s := range states {
			withHeaders(d.Headers, s)
		}

		return d
	}
	first := wire.State{Queue: "orders", Count: 1}
	failed := wire.State{Queue: "orders", Count: 1, Delay: "1s", Attempts: 1, Arrival: wire.NewArrival("", "orders", "",
		"", "")}
	dead := failed
	dead.Count, dead.Reason = header.CountDead, retry.ReasonExhausted
	moved := func(d *amqp091.Delivery) amqp091.Publishing {
		p, fits := MovedOf(d, "orders", 0)
		assert.True(t, fits)

		return p
	}
	replayed := func(d *amqp091.Delivery) amqp091.Publishing {
		p, fits := ReplayOf(d, Replay{MainQueue: "orders", Target: "orders", Run: "run"}, 0)
		assert.True(t, fits)

		return p
	}

	for name, p := range map[string]amqp091.Publishing{
		"a first failure":                      copyOf(with(), first),
		"a dead letter":                        copyOf(with(), wire.State{Queue: "orders", Count: header.CountDead}),
		"a copy of an older version":           copyOf(with(failed), failed),
		"moved":                                moved(with()),
		"moved, a copy of an older version":    moved(with(dead)),
		"replayed":                             replayed(with()),
		"replayed, a copy of an older version": replayed(with(dead)),
		"a second failure":                     copyOf(again(copyOf(with(), first)), failed),
		"a dead letter that is moved":          moved(again(copyOf(with(), dead))),
		"a dead letter that is replayed":       replayed(again(copyOf(with(), dead))),
		"a replayed one that fails":            copyOf(again(replayed(again(copyOf(with(), dead)))), failed),
		"one that was between retries elsewhere": copyOf(again(copyOf(with(), wire.State{Queue: "other", Count: 1})),
			failed),
	} {
		for key := range p.Headers {
			assert.False(t, header.IsBroker(key), "%s: %s", name, key)
		}
		text, _ := p.Headers["amqpretry-opt"].(string)
		assert.JSONEq(t, kept, text, name)
		assert.Equal(t, int64(1), p.Headers["own"], name)
	}
}

// withHeaders adds the headers of a state.
func withHeaders(headers amqp091.Table, s wire.State) amqp091.Table {
	for key, value := range s.Headers("id") {
		headers[key] = value
	}

	return headers
}

// again is what a consumer gets of a copy.
func again(p amqp091.Publishing) *amqp091.Delivery {
	return &amqp091.Delivery{RoutingKey: "orders", Headers: p.Headers}
}

// A handler sees these headers at every attempt alike.
func TestHandlersSeeOptHeadersAtEveryAttempt(t *testing.T) {
	first := amqp091.Table{"x-opt-delivery-time": farTime, "x-opt-float": 1e21, "x-opt-text": "\"1\"", "own": "1",
		"x-death": []any{}}
	p := copyOf(&amqp091.Delivery{Headers: first}, wire.State{Queue: "orders", Count: 1})

	assert.Equal(t, amqp091.Table{
		"x-opt-delivery-time": "253402300799000", "x-opt-float": "1e+21", "x-opt-text": "\"1\"", "own": "1",
	}, plainHeaders(first))
	assert.Equal(t, plainHeaders(first), plainHeaders(p.Headers))
}

// A publisher may use the broker's feature; what only the broker writes stays out.
func TestPublishersMaySetOptHeaders(t *testing.T) {
	assert.False(t, isUnpublished("x-opt-delivery-time"))
	assert.True(t, isUnpublished("x-death"))
	assert.True(t, isUnpublished("amqpretry-opt"))
}
