package codec

import (
	"cmp"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// DeadLetter tells of the failure of what lies in the dead-letter queue of a main queue: by our
// headers, by the broker's where that has put it there, and by those of other libraries.
func DeadLetter(d *amqp091.Delivery, mainQueue string) (l retry.DeadLetter, uuid string) {
	l, s := deadLetter(d, mainQueue)
	complete(&l, faultOf(d.Headers))

	return l, s.UUID
}

// deadLetter reads our headers and the broker's. A copy of the message needs no more: it keeps the
// headers of other libraries.
func deadLetter(d *amqp091.Delivery, mainQueue string) (l retry.DeadLetter, s wire.State) {
	s, ours := wire.ReadDead(d.Headers, mainQueue)
	death := newest(d.Headers)
	another := text(d.Headers, header.Queue)
	switch {
	case ours:
		l = engine.DeadLetterOf(s)
		l.Queue = cmp.Or(l.Queue, mainQueue)
	case another != "" && death["queue"] != mainQueue:
		// Somebody has moved it here, while it was between two attempts there.
		l.Queue = wire.Text(another, wire.MaxNameBytes)
	default:
		fault := faultOf(d.Headers)
		if death = failing(d.Headers, mainQueue); isNewer(fault, death, mainQueue) {
			death = nil
		}
		l.Queue = cmp.Or(bounded(death, "queue"), fault.Queue, mainQueue)
	}
	// Our copies carry no x-death: where there is one of this queue, the broker has made this dead
	// letter, maybe of a replayed one.
	byBroker(&l, death, s.Arrival.Known())

	return l, s
}

// byBroker completes a dead letter that the broker has made when it left its queue.
func byBroker(l *retry.DeadLetter, death amqp091.Table, known bool) {
	if queue := text(death, "queue"); queue == "" || queue != l.Queue {
		return
	}
	l.Reason = wire.BrokerReason(text(death, "reason"))
	if at, ok := death["time"].(time.Time); ok {
		l.LastFailure = at.UTC()
	}
	if known { // it has failed before, and came by a retry queue
		return
	}
	l.Exchange, l.Expiration = bounded(death, "exchange"), bounded(death, "original-expiration")
	l.RoutingKey = wire.Text(firstKey(death), wire.MaxNameBytes)
}

// bounded is a text that a publisher may have written.
func bounded(t amqp091.Table, key string) string { return wire.Text(text(t, key), wire.MaxNameBytes) }
