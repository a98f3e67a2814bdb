package peers

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
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

// waiting are the arguments of a queue where messages wait: as safe as the broker can make a quorum queue, the same for
// everybody.
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

// atLeastOnce lets a quorum queue forget what it dead-letters only when the target has confirmed it.
func atLeastOnce(arguments amqp091.Table) {
	arguments["x-dead-letter-strategy"] = "at-least-once"
	arguments["x-overflow"] = "reject-publish"
}

// fill declares a main queue as its peer would, and publishes persistent messages to it; it returns when the broker has
// confirmed them.
func (q queue) fill(b *testing.B, uri string, arguments amqp091.Table, messages int) {
	b.Helper()
	connection := dial(b, uri)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(b, err)
	_, err = channel.QueueDeclare(q.name, true, false, false, false, arguments)
	require.NoError(b, err)

	require.NoError(b, channel.Confirm(false))
	confirms := make([]*amqp091.DeferredConfirmation, messages)
	for i := range messages {
		id := watermill.NewUUID()
		confirms[i], err = channel.PublishWithDeferredConfirmWithContext(b.Context(), "", q.name, false, false, amqp091.Publishing{
			Headers:      amqp091.Table{amqp.DefaultMessageUUIDHeaderKey: id, "kind": "order"},
			MessageId:    id,
			DeliveryMode: amqp091.Persistent,
			Body:         payload,
		})
		require.NoError(b, err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	for _, confirm := range confirms {
		acked, err := confirm.WaitContext(ctx)
		require.NoError(b, err)
		require.True(b, acked)
	}
}

// remove removes it, and what lies beside it.
func (q queue) remove(b *testing.B, uri string, beside objects) {
	b.Helper()
	connection := dial(b, uri)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(b, err)
	for _, name := range []string{q.name, beside.retry, beside.dead} {
		if name == "" {
			continue
		}
		_, err = channel.QueueDelete(name, false, false, false)
		require.NoError(b, err)
	}
	for _, name := range beside.exchanges {
		require.NoError(b, channel.ExchangeDelete(name, false, false))
	}
}

// take takes all messages out of a queue that nobody consumes from, and returns their ids.
func take(b *testing.B, uri, name string) []string {
	b.Helper()
	connection := dial(b, uri)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(b, err)
	var ids []string
	for {
		message, ok, err := channel.Get(name, true)
		require.NoError(b, err)
		if !ok {
			return ids
		}
		ids = append(ids, message.MessageId)
	}
}

func dial(b *testing.B, uri string) *amqp091.Connection {
	b.Helper()
	connection, err := amqp091.Dial(uri)
	require.NoError(b, err)

	return connection
}

// payload is what a message carries: a few fields.
var payload = []byte(`{"order":"7e1c7e9b-4a34-4d2e-9f0e-6f4fd0f2a9f1","customer":4711,"items":[{"sku":"a-1","quantity":2},{"sku":"b-7","quantity":1}]}`)
