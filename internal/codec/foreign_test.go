package codec

import (
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

// springTrace is what Throwable.printStackTrace writes.
const springTrace = `org.springframework.amqp.rabbit.support.ListenerExecutionFailedException: Listener threw exception
	at org.springframework.amqp.rabbit.listener.adapter.HandlerAdapter.invoke(HandlerAdapter.java:75)
	at java.base/java.lang.Thread.run(Thread.java:1583)
	Suppressed: java.io.IOException: cannot close
		at shop.Bill.close(Bill.java:9)
	Caused by: java.io.EOFException
Caused by: java.lang.IllegalStateException: no stock: item 17
	at shop.Bill.handle(Bill.java:31)
	... 13 more
Caused by: java.sql.SQLException: connection refused
	... 14 more
`

var faultAt = time.Date(2026, 1, 2, 3, 4, 5, 678_901_200, time.UTC)

func massTransitHeaders() amqp091.Table {
	return amqp091.Table{
		"MT-Reason": "fault", "MT-Host-MachineName": "shop-1", "MT-Host-ProcessId": "17",
		"MT-Fault-ExceptionType": "System.InvalidOperationException", "MT-Fault-Message": "No stock",
		"MT-Fault-Timestamp":    "2026-01-02T03:04:05.6789012Z",
		"MT-Fault-InputAddress": "rabbitmq://broker/sales/orders?bind=true&queue=orders",
		"MT-Fault-StackTrace":   "   at Shop.Bill.Consume()", "MT-Fault-ConsumerType": "Shop.BillConsumer",
		"MT-Fault-MessageType": "Shop.Contracts.Order", "MT-Fault-RetryCount": int32(3),
	}
}

func nServiceBusHeaders() amqp091.Table {
	return amqp091.Table{
		"NServiceBus.ExceptionInfo.ExceptionType": "System.Net.Http.HttpRequestException",
		"NServiceBus.ExceptionInfo.Message":       "Connection refused", "NServiceBus.FailedQ": "orders",
		"NServiceBus.ExceptionInfo.StackTrace": "System.Net.Http.HttpRequestException: Connection refused\n   at …",
		"NServiceBus.TimeOfFailure":            "2026-01-02 03:04:05:678901 Z",
		"NServiceBus.ProcessingEndpoint":       "Shop.Billing", "NServiceBus.ProcessingMachine": "shop-2",
		"NServiceBus.EnclosedMessageTypes": "Shop.Order, Shop, Version=1.0.0.0, Culture=neutral;Shop.IOrder, Shop",
	}
}

// What other libraries tell of a failure is read from their headers.
func TestForeign(t *testing.T) {
	with := func(headers amqp091.Table, changes ...any) amqp091.Table {
		for i := 0; i < len(changes); i += 2 {
			headers[changes[i].(string)] = changes[i+1]
		}
		return headers
	}
	fault := func(l retry.DeadLetter, change func(*retry.DeadLetter)) retry.DeadLetter {
		change(&l)
		return l
	}
	spring := retry.DeadLetter{Queue: "orders", Reason: retry.ReasonRejected, Error: "no stock: item 17",
		ErrorType: "java.lang.IllegalStateException", Exchange: "shop", RoutingKey: "order.created"}
	mt := retry.DeadLetter{Queue: "orders", Reason: retry.ReasonRejected, Error: "No stock",
		ErrorType: "System.InvalidOperationException", Topic: "Shop.Contracts.Order", Handler: "Shop.BillConsumer",
		Host: "shop-1", Calls: 4, LastFailure: faultAt}
	nsb := retry.DeadLetter{Queue: "orders", Reason: retry.ReasonRejected, Error: "Connection refused",
		ErrorType: "System.Net.Http.HttpRequestException", Topic: "Shop.Order", Handler: "Shop.Billing", Host: "shop-2",
		LastFailure: faultAt.Truncate(time.Microsecond)}
	springHeaders := func() amqp091.Table {
		return amqp091.Table{"x-exception-stacktrace": springTrace, "x-exception-message": "no stock: item 17",
			"x-original-exchange": "shop", "x-original-routingKey": "order.created"}
	}
	trace := func(trace string) amqp091.Table { return amqp091.Table{"x-exception-stacktrace": trace} }
	sprung := func(class, message string) retry.DeadLetter {
		return retry.DeadLetter{Queue: "orders", Reason: retry.ReasonRejected, ErrorType: class, Error: message}
	}

	for name, test := range map[string]struct {
		headers amqp091.Table
		want    retry.DeadLetter
	}{
		"Spring": {springHeaders(), spring},
		"Spring, as bytes": {with(springHeaders(), "x-exception-stacktrace", []byte(springTrace),
			"x-exception-message", []byte("no stock: item 17")), spring},
		"Spring, by default": {with(springHeaders(), "x-exception-stacktrace", nil),
			fault(spring, func(l *retry.DeadLetter) { l.ErrorType = "" })},
		"Spring, no message": {with(springHeaders(), "x-exception-message", nil), spring},
		"Spring, where only": {amqp091.Table{"x-original-exchange": "", "x-original-routingKey": "orders"},
			retry.DeadLetter{Queue: "orders", Reason: retry.ReasonRejected, RoutingKey: "orders"}},
		"Java, no cause": {trace("shop.Bill$Error: a\n\tat shop.Bill.handle(Bill.java:31)\n"),
			sprung("shop.Bill$Error", "a")},
		"Java, on Windows": {trace("a.B: b\r\n\tat a.B.c(B.java:1)\r\nCaused by: c.D: e\r\n\t... 1 more\r\n"),
			sprung("c.D", "e")},
		"Java, no text": {trace("a.B: b\nCaused by: java.lang.NullPointerException\n\tat a.B.c(B.java:1)"),
			sprung("java.lang.NullPointerException", "java.lang.NullPointerException")},
		"Java, cut off": {trace("a.B: b\n\tat a.B.c(B.ja"), sprung("a.B", "b")},
		"no Java":       {trace("an error: of another kind"), sprung("", "an error: of another kind")},

		"MassTransit":           {massTransitHeaders(), mt},
		"MassTransit, as bytes": {with(massTransitHeaders(), "MT-Fault-Message", []byte("No stock")), mt},
		"MassTransit, other types": {with(massTransitHeaders(), "MT-Fault-Timestamp", faultAt.Local(),
			"MT-Fault-RetryCount", "3"), mt},
		"MassTransit, local time": {with(massTransitHeaders(), "MT-Fault-Timestamp",
			"2026-01-02T05:04:05.6789012+02:00"), mt},
		"MassTransit, no retries": {with(massTransitHeaders(), "MT-Fault-RetryCount", nil),
			fault(mt, func(l *retry.DeadLetter) { l.Calls = 0 })},
		"MassTransit, odd values": {with(massTransitHeaders(), "MT-Fault-RetryCount", int64(-7), "MT-Fault-Timestamp",
			"yesterday", "MT-Fault-InputAddress", "%zz"), fault(mt, func(l *retry.DeadLetter) {
			l.Calls, l.LastFailure = 0, time.Time{}
		})},
		"MassTransit, root virtual host": {with(massTransitHeaders(), "MT-Fault-InputAddress",
			"rabbitmq://broker/Shop%3aorders"),
			fault(mt, func(l *retry.DeadLetter) { l.Queue = "Shop:orders" })},
		"MassTransit, skipped": {amqp091.Table{"MT-Reason": "dead-letter", "MT-Host-MachineName": "shop-1"},
			retry.DeadLetter{Queue: "orders"}},

		"NServiceBus": {nServiceBusHeaders(), nsb},
		"NServiceBus, another queue": {with(nServiceBusHeaders(), "NServiceBus.FailedQ", "bills"),
			fault(nsb, func(l *retry.DeadLetter) { l.Queue = "bills" })},
		"NServiceBus, no time": {with(nServiceBusHeaders(), "NServiceBus.TimeOfFailure",
			"2026-01-02 03:04:05:67890x Z"),
			fault(nsb, func(l *retry.DeadLetter) { l.LastFailure = time.Time{} })},
		"NServiceBus, sent and not failed": {amqp091.Table{"NServiceBus.EnclosedMessageTypes": "Shop.Order, Shop",
			"NServiceBus.ProcessingEndpoint": "Shop.Billing"}, retry.DeadLetter{Queue: "orders"}},

		"Watermill": {amqp091.Table{header.PoisonReason: "boom", header.PoisonTopic: "orders",
			header.PoisonHandler: "bill"},
			retry.DeadLetter{Queue: "orders", Reason: retry.ReasonRejected, Error: "boom", Topic: "orders",
				Handler: "bill"}},
	} {
		l, _ := DeadLetter(&amqp091.Delivery{Headers: test.headers}, "orders")
		assert.Equal(t, test.want, l, name)
	}
}

// Some libraries pass x-death on when they publish to an error queue. What happened last counts.
func TestForeignAndBroker(t *testing.T) {
	death := func(queue, reason string, at time.Time) amqp091.Table {
		return amqp091.Table{"queue": queue, "reason": reason, "time": at, "count": int64(1), "exchange": "shop",
			"routing-keys": []any{"order.created"}}
	}
	earlier, later := faultAt.Add(-time.Hour), faultAt.Add(time.Hour)
	for name, test := range map[string]struct {
		death         amqp091.Table
		reason        retry.Reason
		queue, routed string
		at            time.Time
	}{
		"waited": {death("orders.wait", "expired", later), retry.ReasonRejected, "orders", "",
			faultAt},
		"rejected elsewhere": {death("bills", "rejected", earlier), retry.ReasonRejected, "orders", "", faultAt},
		"rejected elsewhere later": {death("bills", "rejected", later), retry.ReasonRejected, "bills", "order.created",
			later},
		"expired later": {death("orders", "expired", later), retry.ReasonExpired, "orders", "order.created",
			later},
		"delivered too often later": {death("orders", "delivery_limit", later), retry.ReasonDeliveryLimit, "orders",
			"order.created", later},
	} {
		headers := massTransitHeaders()
		headers[header.Death] = []any{test.death}
		l, _ := DeadLetter(&amqp091.Delivery{Headers: headers}, "orders")
		assert.Equal(t, test.reason, l.Reason, name)
		assert.Equal(t, test.queue, l.Queue, name)
		assert.Equal(t, test.routed, l.RoutingKey, name)
		assert.Equal(t, test.at, l.LastFailure, name)
		assert.Equal(t, "No stock", l.Error, name)
	}

	// Spring's tells no time: the time and the origin of the broker's are the best that is known.
	deaths := []any{death("orders.wait", "expired", later), death("orders", "rejected", earlier)}
	l, _ := DeadLetter(&amqp091.Delivery{Headers: amqp091.Table{"x-exception-message": "boom",
		"x-original-exchange": "dlx", header.Death: deaths}}, "orders")
	assert.Equal(t, retry.DeadLetter{Reason: retry.ReasonRejected, Queue: "orders", Error: "boom", LastFailure: earlier,
		Exchange: "shop", RoutingKey: "order.created"}, l)
}

// Our headers come first: those of an earlier failure elsewhere stay on the message.
func TestForeignBehindOurs(t *testing.T) {
	ours := wire.State{Count: header.CountDead, Attempts: 1, Queue: "orders", Topic: "orders", LastFailure: faultAt,
		Reason: retry.ReasonExpired}
	l, _ := DeadLetter(&amqp091.Delivery{Headers: withHeaders(massTransitHeaders(), ours)}, "orders")
	assert.Equal(t, retry.DeadLetter{Reason: retry.ReasonExpired, Queue: "orders", Topic: "orders", Calls: 1,
		LastFailure: faultAt.Truncate(time.Millisecond)}, l)

	// A copy keeps them, and so what they tell, whatever the broker has added.
	d := amqp091.Delivery{Headers: nServiceBusHeaders(), UserId: "guest"}
	d.Headers[header.LastDeath+"queue"], d.Headers[header.LastDeath+"reason"] = "nsb.v2.delay-level-00", "expired"
	before, _ := DeadLetter(&d, "sales")
	assert.Equal(t, "orders", before.Queue, "it has only waited in the queue of a delay")
	moved, fits := MovedOf(&d, "sales", 0)
	assert.True(t, fits)
	after, _ := DeadLetter(&amqp091.Delivery{Headers: moved.Headers}, "sales")
	assert.Equal(t, "guest", after.UserID)
	after.UserID, after.RoutingKey = before.UserID, before.RoutingKey // our headers have these
	assert.Equal(t, before, after)
}

// Without x-death its summaries tell.
func TestDeathSummaries(t *testing.T) {
	first := func(reason string) amqp091.Table {
		return amqp091.Table{header.FirstDeathQueue: "orders", header.FirstDeathReason: reason,
			header.FirstDeath + "exchange": "shop"}
	}
	both := first("rejected")
	both["x-last-death-queue"], both["x-last-death-reason"] = "orders.wait", "expired"
	noArray := first("maxlen")
	noArray[header.Death] = "[{count=1}]"
	for name, test := range map[string]struct {
		headers amqp091.Table
		reason  retry.Reason
	}{
		"first": {first("rejected"), retry.ReasonRejected}, "expired": {first("expired"), retry.ReasonExpired},
		"then waited": {both, retry.ReasonRejected}, "x-death as a text": {noArray, retry.ReasonMaxLen},
	} {
		for _, mainQueue := range []string{"orders", "another"} {
			l, _ := DeadLetter(&amqp091.Delivery{Headers: test.headers}, mainQueue)
			assert.Equal(t, retry.DeadLetter{Reason: test.reason, Queue: "orders", Exchange: "shop"}, l, name)
		}
	}
}

// Whoever can publish can write these headers, with any type and any length.
func TestForeignIsBounded(t *testing.T) {
	keys := []string{"x-exception-stacktrace", "x-exception-message", "x-original-exchange", "x-original-routingKey",
		header.PoisonReason, header.PoisonTopic, header.PoisonHandler, header.Death, header.LastDeath + "queue"}
	for _, headers := range []amqp091.Table{massTransitHeaders(), nServiceBusHeaders()} {
		for key := range headers {
			keys = append(keys, key)
		}
	}
	forged := strings.Repeat("caf\xe9 :\n", 30_000)
	for _, value := range []any{
		nil, "", forged, []byte(forged), true, int8(-1), int64(1) << 62, 1e300, amqp091.Decimal{Scale: 255, Value: -1},
		time.Unix(1<<60, 0), []any{forged, nil, amqp091.Table{}}, amqp091.Table{"queue": []any{[]byte{0xff}}}, []any{},
		"rabbitmq://[::1/", "://", "2026-01-02 03:04:05:", "\nCaused by: ", ": ",
	} {
		for only := range len(keys) + 1 {
			headers := amqp091.Table{}
			for i, key := range keys {
				if only == len(keys) || only == i {
					headers[key] = value
				}
			}
			l, _ := DeadLetter(&amqp091.Delivery{Headers: headers}, "orders")
			assert.LessOrEqual(t, len(l.Error), wire.MaxErrorBytes)
			assert.LessOrEqual(t, len(l.ErrorType), wire.MaxErrorTypeBytes)
			for _, name := range []string{l.Queue, l.Topic, l.Handler, l.Host, l.Exchange, l.RoutingKey} {
				assert.LessOrEqual(t, len(name), wire.MaxNameBytes)
				assert.True(t, utf8.ValidString(name))
			}
			assert.True(t, utf8.ValidString(l.Error+l.ErrorType))
			assert.GreaterOrEqual(t, l.Calls, 0)
		}
	}
}
