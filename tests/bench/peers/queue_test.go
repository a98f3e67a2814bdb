package peers

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

const (
	classic = "classic"
	quorum  = "quorum"
)

// wait is how long a failed message waits on the broker.
const wait = time.Second

// queue is a main queue, with what a peer declares beside it.
type queue struct {
	name      string
	queueType string // of the main queue
	retryType string // of the queue where messages wait
}

func newQueue(queueType, retryType string) queue {
	return queue{name: "peer-" + watermill.NewShortUUID(), queueType: queueType, retryType: retryType}
}

// waiting are the arguments of a queue where messages wait: as safe as the broker can make a quorum
// queue, the same for everybody.
func (q queue) waiting(exchange, key string) amqp091.Table {
	arguments := amqp091.Table{
		"x-queue-type":           q.retryType,
		"x-message-ttl":          wait.Milliseconds(),
		"x-dead-letter-exchange": exchange,
	}
	if key != "" {
		arguments["x-dead-letter-routing-key"] = key
	}
	if q.retryType == quorum {
		atLeastOnce(arguments)
	}

	return arguments
}

// atLeastOnce lets a quorum queue forget what it dead-letters only when the target has confirmed
// it.
func atLeastOnce(arguments amqp091.Table) {
	arguments["x-dead-letter-strategy"] = "at-least-once"
	arguments["x-overflow"] = "reject-publish"
}

// fill declares a main queue as its peer would, and publishes persistent messages to it; it returns
// when the broker has confirmed them.
func (q queue) fill(b *testing.B, uri string, arguments amqp091.Table, messages int) {
	b.Helper()
	all := make([]amqp091.Publishing, messages)
	for i := range all {
		id := watermill.NewUUID()
		all[i] = rabbit.Message(id, "")
		all[i].Body, all[i].MessageId, all[i].Headers["kind"] = payload, id, "order"
	}
	client := rabbit.New(b, uri)
	client.Declare(q.name, arguments)
	client.Publish(q.name, all...)
}

// remove removes it, and what lies beside it.
func (q queue) remove(b *testing.B, uri string, beside objects) {
	b.Helper()
	client := rabbit.New(b, uri)
	for _, name := range []string{q.name, beside.retry, beside.dead} {
		if name != "" {
			client.Remove("", name)
		}
	}
	for _, name := range beside.exchanges {
		client.Remove(name)
	}
}

// take takes all messages out of a queue that nobody consumes from, and returns their ids.
func take(b *testing.B, uri, name string) []string {
	b.Helper()
	var ids []string
	for _, d := range rabbit.New(b, uri).Drain(name) {
		ids = append(ids, d.MessageId)
	}

	return ids
}

// payload is what a message carries: a few fields.
var payload = []byte(`{"order":"7e1c7e9b-4a34-4d2e-9f0e-6f4fd0f2a9f1","customer":4711,"items":[{"sku":"a-1","quantity":2},{"sku":"b-7","quantity":1}]}`)
