package transport

import (
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/wire"
)

// newestDeath names the queue of the newest entry of x-death, empty where there is none that can be read.
func newestDeath(headers amqp091.Table) string {
	deaths, _ := headers[wire.KeyDeath].([]any)
	if len(deaths) == 0 {
		return ""
	}

	newest, _ := deaths[0].(amqp091.Table)
	queue, _ := newest["queue"].(string)

	return queue
}

// deliveryCount is how often the broker has delivered the message without an answer, as far as it counts: quorum queues only.
// 3.10 to 4.2 count every return to the queue; from 4.3 on only those that an explicit requeue does not explain.
func deliveryCount(headers amqp091.Table) int64 {
	switch n := headers[wire.KeyDeliveryCount].(type) {
	case int64:
		return n
	case int32:
		return int64(n)
	}

	return 0
}
