package codec

import (
	"maps"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// What a dead letter tells is what was written on it, and it need not have been us who wrote it.
func TestDeadLetter(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	state := wire.State{
		Count: header.CountDead, Attempts: 4, Replays: 1, Queue: "orders", Topic: "topic", Handler: "ship",
		Host: "host", UUID: "uuid",
		FirstFailure: at, LastFailure: at.Add(time.Minute), Since: at.Add(-time.Hour), Deadline: at.Add(time.Hour),
		Reason: retry.ReasonExhausted, Error: "boom", ErrorType: "*errors.errorString",
		History: []retry.FailedCall{{Number: 1, At: at, Error: "boom"}},
		Arrival: wire.NewArrival("shop", "orders.eu", "5000", "ann", ""),
	}
	ours := withHeaders(amqp091.Table{header.Removed: "huge"}, state)
	full := retry.DeadLetter{
		Reason: retry.ReasonExhausted, Error: "boom", ErrorType: "*errors.errorString",
		Queue: "orders", Topic: "topic", Handler: "ship", Host: "host", Calls: 4, Replays: 1,
		FirstFailure: at, LastFailure: at.Add(time.Minute),
		History: []retry.FailedCall{{Number: 1, At: at, Error: "boom"}},
		Since:   at.Add(-time.Hour), Deadline: at.Add(time.Hour),
		Exchange: "shop", RoutingKey: "orders.eu", Expiration: "5000", UserID: "ann", Removed: "huge",
	}

	death := func(queue, reason string) []any {
		return []any{amqp091.Table{
			"queue": queue, "reason": reason, "time": at, "exchange": "shop", "routing-keys": []any{"orders.us", "cc"},
			"original-expiration": "7",
		}}
	}
	byBroker := func(reason retry.Reason) retry.DeadLetter {
		return retry.DeadLetter{
			Reason: reason, Queue: "orders", LastFailure: at, Exchange: "shop", RoutingKey: "orders.us",
			Expiration: "7",
		}
	}
	of := func(queue string, l retry.DeadLetter) retry.DeadLetter {
		l.Queue = queue
		return l
	}
	with := func(headers amqp091.Table, key string, value any) amqp091.Table {
		changed := maps.Clone(headers)
		changed[key] = value

		return changed
	}
	died := func(queue, reason string) amqp091.Table { return amqp091.Table{header.Death: death(queue, reason)} }
	rejected := full
	rejected.Reason, rejected.LastFailure = retry.ReasonRejected, at
	retried := full
	retried.Reason, retried.LastFailure = retry.ReasonDeliveryLimit, at

	for name, test := range map[string]struct {
		headers amqp091.Table
		want    retry.DeadLetter
	}{
		"ours":                        {ours, full},
		"replayed, and then rejected": {with(ours, header.Death, death("orders", "rejected")), rejected},
		"ours, and another's x-death": {with(ours, header.Death, death("another", "rejected")), full},
		"a later version":             {with(ours, header.Version, "2"), retry.DeadLetter{Queue: "orders"}},
		"rejected":                    {died("orders", "rejected"), byBroker(retry.ReasonRejected)},
		"delivery limit":              {died("orders", "delivery_limit"), byBroker(retry.ReasonDeliveryLimit)},
		"length limit":                {died("orders", "maxlen"), byBroker(retry.ReasonMaxLen)},
		"expired":                     {died("orders", "expired"), byBroker(retry.ReasonExpired)},
		"a reason of a later broker":  {died("orders", "bored"), byBroker("")},
		"from another queue":          {died("another", "rejected"), of("another", byBroker(retry.ReasonRejected))},
		"expired in another queue":    {died("another", "expired"), of("another", byBroker(retry.ReasonExpired))},
		"rejected, then waited": {amqp091.Table{header.Death: append(death("orders.wait", "expired"),
			death("orders", "rejected")...)}, byBroker(retry.ReasonRejected)},
		"rejected elsewhere, then expired": {amqp091.Table{header.Death: append(death("orders", "expired"),
			death("another", "rejected")...)}, byBroker(retry.ReasonExpired)},
		"rejected here, then elsewhere": {amqp091.Table{header.Death: append(death("another", "rejected"),
			death("orders", "rejected")...)}, of("another", byBroker(retry.ReasonRejected))},
		"moved here between attempts": {with(with(ours, header.Count, "2"), header.Queue, "another"),
			retry.DeadLetter{Queue: "another"}},
		"passed on from another queue": {with(amqp091.Table{header.Queue: "another"}, header.Death,
			death("orders", "rejected")), byBroker(retry.ReasonRejected)},
		"by hand": {nil, retry.DeadLetter{Queue: "orders"}},
		"nonsense": {amqp091.Table{header.Death: []any{5}, header.Count: int64(-1)},
			retry.DeadLetter{Queue: "orders"}},
		"while it was between attempts": {with(with(ours, header.Count, "2"), header.Death,
			death("orders", "delivery_limit")), retried},
	} {
		t.Run(name, func(t *testing.T) {
			letter, uuid := DeadLetter(&amqp091.Delivery{Headers: test.headers}, "orders")
			assert.Equal(t, test.want, letter)
			if letter.Handler != "" {
				assert.Equal(t, "uuid", uuid)
			}
		})
	}
}

// Where it came from is a publisher's word as well: readable, and no longer than what we write
// ourselves.
func TestDeadLetterIsBounded(t *testing.T) {
	forged := strings.Repeat("caf\xe9", 30_000)
	l, uuid := DeadLetter(&amqp091.Delivery{Headers: amqp091.Table{
		header.Version: "1", header.Queue: "orders", header.Count: "-1", header.UUID: forged, header.Removed: forged,
		header.Exchange: forged, header.RoutingKey: forged, header.Expiration: forged, header.UserID: forged,
	}}, "orders")
	for _, text := range []string{l.Exchange, l.RoutingKey, l.Expiration, l.UserID, uuid} {
		assert.True(t, utf8.ValidString(text))
		assert.NotEmpty(t, text)
		assert.LessOrEqual(t, len(text), wire.MaxNameBytes)
	}
	assert.Greater(t, len(l.Removed), wire.MaxNameBytes, "all that is written is read")
	assert.LessOrEqual(t, len(l.Removed), wire.MaxRemovedBytes)
}

// Without a main queue the x-death tells whose a dead letter is, unless the message has only
// waited.
func TestDeadLetterOfAnyQueue(t *testing.T) {
	for reason, queue := range map[string]string{"rejected": "another", "delivery_limit": "another", "expired": ""} {
		l, _ := DeadLetter(&amqp091.Delivery{Headers: amqp091.Table{header.Death: []any{amqp091.Table{
			"queue": "another", "reason": reason}}}}, "")
		assert.Equal(t, queue, l.Queue, reason)
	}
}
