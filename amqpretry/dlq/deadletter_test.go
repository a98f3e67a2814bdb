package dlq

import (
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/retry"
)

func TestDeadLetter(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	dead := func(queue string) amqp091.Table {
		return amqp091.Table{
			header.Version: header.FormatVersion, header.Count: "-1", header.Queue: queue, header.UUID: "ours",
			header.Reason:      "permanent",
			header.LastFailure: at.Format(time.RFC3339), header.Replays: "2",
			header.Edits: `[{"at":"2026-01-02T03:04:05Z","by":"ann"}]`,
		}
	}
	death := func(queue string, at time.Time) []any {
		return []any{amqp091.Table{"queue": queue, "reason": "delivery_limit", "time": at}}
	}
	with := func(headers amqp091.Table, key string, value any) amqp091.Table {
		headers[key] = value
		return headers
	}
	ours := func(queue string) retry.DeadLetter {
		return retry.DeadLetter{Queue: queue, Reason: "permanent", LastFailure: at, Replays: 2}
	}
	edits := []Edit{{At: at, By: "ann"}}

	for name, test := range map[string]struct {
		headers amqp091.Table
		want    DeadLetter
	}{
		"ours":             {dead("orders"), DeadLetter{UUID: "ours", DeadLetter: ours("orders"), Edits: edits}},
		"of another queue": {dead("another"), DeadLetter{UUID: "ours", DeadLetter: ours("another"), Edits: edits}},
		"with a UUID": {with(dead("orders"), "uuid", "its own"),
			DeadLetter{UUID: "its own", DeadLetter: ours("orders"), Edits: edits}},
		"no text as UUID": {with(dead("orders"), "uuid", int32(5)),
			DeadLetter{UUID: "ours", DeadLetter: ours("orders"), Edits: edits}},
		"no text as edits": {with(dead("orders"), header.Edits, []byte("[]")),
			DeadLetter{UUID: "ours", DeadLetter: ours("orders")}},
		"by hand": {nil, DeadLetter{UUID: "message id", DeadLetter: retry.DeadLetter{Queue: "orders"}}},
		"by the broker": {
			amqp091.Table{header.Death: death("orders", at)},
			DeadLetter{UUID: "message id", DeadLetter: retry.DeadLetter{Queue: "orders", Reason: "delivery-limit",
				LastFailure: at}},
		},
		"by the broker, at no time": {
			amqp091.Table{header.Death: death("orders", time.Unix(1<<60, 0))},
			DeadLetter{UUID: "message id", DeadLetter: retry.DeadLetter{Queue: "orders", Reason: "delivery-limit"}},
		},
		"moved here between attempts": {
			with(with(dead("another"), header.Count, "2"), header.Death, death("another.retry.30s", at)),
			DeadLetter{UUID: "message id", DeadLetter: retry.DeadLetter{Queue: "another"}, Edits: edits},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := amqp091.Delivery{
				Headers: test.headers, ContentType: "1", ContentEncoding: "2", DeliveryMode: 3, Priority: 4,
				CorrelationId: "5", ReplyTo: "6", Expiration: "7",
				MessageId: "message id", Timestamp: at, Type: "8", UserId: "9", AppId: "10", Body: []byte("body"),
				Exchange: "x", RoutingKey: "k",
			}
			test.want.Position, test.want.Unreadable, test.want.CameBy = 7, "a", Route{"x", "k"}
			test.want.Message = amqp091.Publishing{
				Headers: test.headers, ContentType: "1", ContentEncoding: "2", DeliveryMode: 3, Priority: 4,
				CorrelationId: "5", ReplyTo: "6", Expiration: "7",
				MessageId: "message id", Timestamp: at, Type: "8", UserId: "9", AppId: "10", Body: []byte("body"),
			}
			assert.Equal(t, test.want, newDeadLetter(&d, "a", "orders", "uuid", 7))
		})
	}
}

// Times that JSON cannot tell are forged, wherever they are.
func TestDeadLetterForgetsForgedTimes(t *testing.T) {
	forged := "9999-12-31T23:59:59-14:00"
	headers := amqp091.Table{
		header.Version: header.FormatVersion, header.Count: "-1", header.Queue: "orders", header.FirstFailure: forged,
		header.LastFailure: forged,
		header.Since:       forged, header.Deadline: "0000-01-01T00:00:00+14:00", header.Edits: `[{"at":"` + forged +
			`","by":"ann"}]`,
		header.History: `[{"n":1,"at":"2026-01-02T03:04:05Z"},{"n":2,"at":"` + forged + `"}]`,
	}
	l := newDeadLetter(&amqp091.Delivery{Headers: headers}, "", "orders", "", 1)
	assert.Equal(t, retry.DeadLetter{
		Queue: "orders", History: []retry.FailedCall{{Number: 1, At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
			{Number: 2}},
	}, l.DeadLetter)
	assert.Empty(t, l.Edits)
}
