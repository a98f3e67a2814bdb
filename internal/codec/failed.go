package codec

import (
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Failed is what the broker tells of a message in a failed queue: x-death, newest first.
type Failed struct {
	// Queue that has dead-lettered it last, and the broker's word for why. Empty for a message that was published to
	// the failed queue.
	Queue, Reason string
	// Waited are the queues in which it has expired since it was published last, before it came to Queue.
	Waited []string
}

// ReadFailed reads it. A delivery that Queue main has dead-lettered gets back the exchange, the routing key and the
// expiration with which it was there: the broker has replaced them on its way to the failed queue.
func ReadFailed(d *amqp091.Delivery, main string) Failed {
	death := deathAt(d.Headers, 0)
	f := Failed{}
	f.Queue, _ = death["queue"].(string)
	f.Reason, _ = death["reason"].(string)
	if f.Queue != main {
		return f
	}

	// The copy of each failure begins without x-death, so all further entries are of the present wait. Their order means
	// nothing: RabbitMQ 3.10 mixes those of one second.
	deaths, _ := d.Headers[header.Death].([]any)
	for i := 1; i < len(deaths); i++ {
		before := deathAt(d.Headers, i)
		if queue, _ := before["queue"].(string); before["reason"] == "expired" && queue != "" {
			f.Waited = append(f.Waited, queue)
		}
	}
	d.Exchange, _ = death["exchange"].(string)
	d.RoutingKey = ""
	if keys, _ := death["routing-keys"].([]any); len(keys) > 0 {
		d.RoutingKey, _ = keys[0].(string)
	}
	if expiration, ok := death["original-expiration"].(string); ok {
		d.Expiration = expiration
	}

	return f
}

// IsReplay reports whether a message says that it comes from the dead-letter queue of a main queue.
func IsReplay(headers amqp091.Table, main string) bool {
	return wire.Carries(headers, main) && headers[header.Count] == deadCount
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
