package codec

import (
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Failed is what the broker tells of a message in a failed queue: its routing key, and x-death, newest first.
type Failed struct {
	// Main is the main queue that it belongs to; empty if that is none of those that are known.
	Main string
	// Queue that has dead-lettered it last, and the broker's word for why. Empty for a message that was published to
	// the failed queue.
	Queue, Reason string
	// Waited are the queues in which it has expired since it was published last, before it came to Queue.
	Waited []string
}

// ReadFailed reads it, and chooses the main queue: the one that the x-dead-letter-routing-key names, else the one that
// has dead-lettered the message last. isMain knows the main queues of the failed queue.
//
// A delivery that has a main queue gets back the exchange, the routing key and the expiration with which it was in
// Queue: the broker has replaced them on its way to the failed queue.
func ReadFailed(d *amqp091.Delivery, isMain func(queue string) bool) Failed {
	death := deathAt(d.Headers, 0)
	f := Failed{}
	f.Queue, _ = death["queue"].(string)
	f.Reason, _ = death["reason"].(string)
	key := firstKey(death)
	switch {
	// Without an x-dead-letter-routing-key a message keeps the key of its publisher. That chooses nothing: it can be the
	// name of another main queue.
	case isMain(d.RoutingKey) && (f.Queue == "" || d.RoutingKey != key):
		f.Main = d.RoutingKey
	case isMain(f.Queue):
		f.Main = f.Queue
	}
	if f.Main == "" || f.Queue == "" {
		return f
	}

	// The copy of each failure begins without x-death, so all further entries are of the present wait. Their order means
	// nothing.
	//
	// Upstream: entries of x-death are mixed within a second.
	deaths, _ := d.Headers[header.Death].([]any)
	for i := 1; i < len(deaths); i++ {
		before := deathAt(d.Headers, i)
		if queue, _ := before["queue"].(string); before["reason"] == "expired" && queue != "" {
			f.Waited = append(f.Waited, queue)
		}
	}
	d.Exchange, _ = death["exchange"].(string)
	d.RoutingKey = key
	if expiration, ok := death["original-expiration"].(string); ok {
		d.Expiration = expiration
	}

	return f
}

// IsReplay reports whether a message says that it comes from the dead-letter queue of a main queue.
func IsReplay(headers amqp091.Table, main string) bool {
	return wire.Carries(headers, main) && headers[header.Count] == deadCount
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

const deadCount = "-1"

func deathAt(headers amqp091.Table, index int) amqp091.Table {
	deaths, _ := headers[header.Death].([]any)
	if len(deaths) <= index {
		return nil
	}
	death, _ := deaths[index].(amqp091.Table)

	return death
}
