package codec

import (
	"strconv"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Failed is what the broker tells of a message in a failed queue: its routing key, and x-death,
// newest first.
type Failed struct {
	// Main is the main queue that it belongs to; empty if that is none of those that are known.
	Main string
	// Queue that has dead-lettered it last, and the broker's word for why. Empty for a message that
	// was published to the failed queue.
	Queue, Reason string
	// Waited are the queues in which it has expired since it was published last, before it came to
	// Queue.
	Waited []string
}

// ReadFailed reads it, and chooses the main queue: the one that the x-dead-letter-routing-key
// names, else the one that has dead-lettered the message last. isMain knows the main queues of the
// failed queue.
//
// A delivery that has a main queue gets back the exchange, the routing key and the expiration with
// which it was in Queue: the broker has replaced them on its way to the failed queue.
func ReadFailed(d *amqp091.Delivery, isMain func(queue string) bool) Failed {
	death := newest(d.Headers)
	f := Failed{Queue: text(death, "queue"), Reason: text(death, "reason")}
	key := firstKey(death)
	switch {
	// Without an x-dead-letter-routing-key a message keeps the key of its publisher. That chooses
	// nothing: it can be the name of another main queue.
	case isMain(d.RoutingKey) && (f.Queue == "" || d.RoutingKey != key):
		f.Main = d.RoutingKey
	case isMain(f.Queue):
		f.Main = f.Queue
	}
	if f.Main == "" || f.Queue == "" {
		return f
	}

	// The copy of each failure begins without x-death, so all further entries are of the present
	// wait. Their order means nothing.
	//
	// Upstream: entries of x-death are mixed within a second.
	deaths, _ := d.Headers[header.Death].([]any)
	for _, entry := range deaths[1:] {
		before, _ := entry.(amqp091.Table)
		if queue := text(before, "queue"); before["reason"] == expired && queue != "" {
			f.Waited = append(f.Waited, queue)
		}
	}
	d.Exchange, d.RoutingKey = text(death, "exchange"), key
	if expiration, ok := death["original-expiration"].(string); ok {
		d.Expiration = expiration
	}

	return f
}

// IsReplay reports whether a message says that it comes from the dead-letter queue of a main queue.
func IsReplay(headers amqp091.Table, main string) bool {
	return wire.Carries(headers, main) && headers[header.Count] == strconv.Itoa(header.CountDead)
}
