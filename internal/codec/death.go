package codec

import (
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/header"
)

// NewestDeath names the queue of the newest entry of x-death, empty where there is none that can be read.
func NewestDeath(headers amqp091.Table) string {
	queue, _ := newest(headers)["queue"].(string)
	return queue
}

func newest(headers amqp091.Table) amqp091.Table {
	deaths, _ := headers[header.Death].([]any)
	if len(deaths) == 0 {
		return nil
	}
	newest, _ := deaths[0].(amqp091.Table)

	return newest
}

// DeliveryCount is how often the broker has delivered the message without an answer, as far as it counts: quorum queues
// only.
// 3.10 to 4.2 count every return to the queue; from 4.3 on only those that an explicit requeue does not explain.
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
