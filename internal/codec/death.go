package codec

import (
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/header"
)

// NewestDeath names the queue of the newest entry of x-death, empty where there is none that can be
// read.
func NewestDeath(headers amqp091.Table) string {
	return text(newest(headers), "queue")
}

// SentNow tells of a copy whose wait an operator has ended: its retry queue has dead-lettered it
// because it was rejected there, or it is a copy of the copy, which tells no end of a wait. An
// older version does not tell when a wait is due, and tells until when it goes on.
func SentNow(headers amqp091.Table) bool {
	return newest(headers)["reason"] == rejected ||
		headers[header.ID] != nil && headers[header.Due] == nil && headers[header.NotBefore] == nil
}

func newest(headers amqp091.Table) amqp091.Table {
	deaths, _ := headers[header.Death].([]any)
	if len(deaths) == 0 {
		return nil
	}
	newest, _ := deaths[0].(amqp091.Table)

	return newest
}

// firstKey is the routing key with which a message was in the queue that has dead-lettered it.
func firstKey(death amqp091.Table) string {
	keys, _ := death["routing-keys"].([]any)
	if len(keys) == 0 {
		return ""
	}
	key, _ := keys[0].(string)

	return key
}

func text(t amqp091.Table, key string) string {
	s, _ := t[key].(string)
	return s
}

// failing returns the entry of x-death that tells in which queue a message without our headers
// failed last. A queue in which messages only wait (expired) may be newer: RabbitMQ 3.10 mixes the
// order within a second, and some consumers copy x-death to what they publish themselves. Without a
// main queue, a message that has only waited has failed nowhere: in the queue of a ladder for
// unroutable messages.
//
// Upstream: entries of x-death are mixed within a second; no issue known, measured; RabbitMQ 3.10;
// TestRejections, TestReadFailed; remove when RabbitMQ 3.13 is no longer supported.
func failing(headers amqp091.Table, mainQueue string) amqp091.Table {
	deaths, _ := headers[header.Death].([]any)
	if len(deaths) == 0 {
		deaths = summaries(headers)
	}
	if len(deaths) == 0 {
		return nil
	}
	first, _ := deaths[0].(amqp091.Table)
	if first["queue"] == mainQueue {
		return first
	}
	for _, d := range deaths {
		if death, ok := d.(amqp091.Table); ok && death["reason"] != expired {
			return death
		}
	}
	if mainQueue == "" {
		return nil
	}

	return first
}

// summaries are the last and the first entry of x-death, without their times: they stay where
// x-death itself cannot be read, or a client has published it as a text. Old brokers have the first
// one only.
func summaries(headers amqp091.Table) (deaths []any) {
	for _, which := range []string{header.LastDeath, header.FirstDeath} {
		if queue := text(headers, which+"queue"); queue != "" {
			deaths = append(deaths, amqp091.Table{"queue": queue, "reason": text(headers, which+"reason"),
				"exchange": text(headers, which+"exchange")})
		}
	}

	return deaths
}

// DeliveryCount is how often the broker has delivered the message without an answer, as far as it
// counts: quorum queues only. 3.10 to 4.2 count every return to the queue; from 4.3 on only those
// that an explicit requeue does not explain.
//
// Upstream: a nack counts as a failed delivery.
func DeliveryCount(headers amqp091.Table) int64 {
	return Counter(headers[header.DeliveryCount])
}

// Counter reads a counter of the broker.
func Counter(v any) int64 {
	switch n := v.(type) {
	case int64:
		return n
	case int32:
		return int64(n)
	}

	return 0
}

// Rejections are how often consumers of a queue have rejected the message, by the broker's word,
// since it was published. ok is false for a message with a past that is none of a dead-letter cycle
// of this queue: its counters, and the reason for which it is routed, would be those of another
// queue.
//
// Upstream: entries of x-death are mixed within a second.
func Rejections(headers amqp091.Table, queue string) (n int64, ok bool) {
	if !HasDied(headers) {
		return 0, true
	}
	deaths, _ := headers[header.Death].([]any)
	if headers[header.FirstDeathQueue] != queue || headers[header.FirstDeathReason] != rejected || len(deaths) == 0 {
		return 0, false
	}
	waited := false
	for _, d := range deaths {
		death, _ := d.(amqp091.Table)
		switch {
		case death["queue"] == queue && death["reason"] == rejected:
			n = Counter(death["count"])
		case death["reason"] != expired || death["queue"] == queue:
			return 0, false
		default:
			waited = true
		}
	}
	if n < 1 || !waited {
		return 0, false
	}

	return n, true
}

const (
	rejected = "rejected"
	expired  = "expired"
)

// HasDied tells whether a message carries what a broker adds when it dead-letters.
func HasDied(headers amqp091.Table) bool {
	for _, key := range []string{header.Death, header.FirstDeathQueue, header.FirstDeathReason} {
		if _, found := headers[key]; found {
			return true
		}
	}

	return false
}

// IsCounted tells whether the broker counts the deliveries of a message that it has delivered
// before.
func IsCounted(headers amqp091.Table) bool {
	_, deliveries := headers[header.DeliveryCount]
	_, acquired := headers[header.AcquiredCount]

	return deliveries || acquired
}

// Fits tells whether a delivery that the broker brings back fits into a frame with what it adds.
func (r Returns) Fits(d *amqp091.Delivery, limit int) bool {
	const deaths = 2 // of the main queue, and of the retry queue

	return limit <= 0 || headerFrameSize(returning(d))+r.once+deaths*r.hop <= limit
}

// returning is a delivery as the broker publishes it again.
func returning(d *amqp091.Delivery) amqp091.Publishing {
	p := republished(d)
	p.Headers, p.Expiration, p.UserId, p.ReplyTo = d.Headers, d.Expiration, d.UserId, d.ReplyTo

	return p
}
