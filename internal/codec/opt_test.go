package codec

import (
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
	with := func(more map[string]string) *amqp091.Delivery {
		d := &amqp091.Delivery{RoutingKey: "orders", Headers: amqp091.Table{}}
		for key, value := range opt {
			d.Headers[key] = value
		}
		for key, value := range more {
			d.Headers[key] = value
		}

		return d
	}
	failed := wire.State{Queue: "orders", Count: 1, Delay: "1s", Attempts: 1, Arrival: wire.NewArrival("", "orders", "",
		"", "")}
	dead := failed
	dead.Count, dead.Reason = header.CountDead, retry.ReasonExhausted
	copied := func(d *amqp091.Delivery, s wire.State) amqp091.Publishing {
		p, _ := CopyOf(&CopyRequest{Delivery: d, State: s}, unlimited)
		return p
	}
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
		"a first failure": copied(with(nil), wire.State{Queue: "orders", Count: 1}),
		"a dead letter": copied(with(nil),
			wire.State{Queue: "orders", Count: header.CountDead}),
		"a copy of an older version":           copied(with(failed.Headers("id")), failed),
		"moved":                                moved(with(nil)),
		"moved, a copy of an older version":    moved(with(dead.Headers("id"))),
		"replayed":                             replayed(with(nil)),
		"replayed, a copy of an older version": replayed(with(dead.Headers("id"))),
		"a second failure": copied(again(copied(with(nil),
			wire.State{Queue: "orders", Count: 1})), failed),
		"a dead letter that is moved":    moved(again(copied(with(nil), dead))),
		"a dead letter that is replayed": replayed(again(copied(with(nil), dead))),
		"a replayed one that fails":      copied(again(replayed(again(copied(with(nil), dead)))), failed),
		"one that was between retries elsewhere": copied(again(copied(with(nil), wire.State{Queue: "other", Count: 1})),
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

// again is what a consumer gets of a copy.
func again(p amqp091.Publishing) *amqp091.Delivery {
	return &amqp091.Delivery{RoutingKey: "orders", Headers: p.Headers}
}

// A handler sees these headers at every attempt alike.
func TestHandlersSeeOptHeadersAtEveryAttempt(t *testing.T) {
	first := amqp091.Table{"x-opt-delivery-time": farTime, "x-opt-float": 1e21, "x-opt-text": "\"1\"", "own": "1",
		"x-death": []any{}}
	p, _ := CopyOf(&CopyRequest{Delivery: &amqp091.Delivery{Headers: first},
		State: wire.State{Queue: "orders", Count: 1}}, unlimited)

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
