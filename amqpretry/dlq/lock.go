package dlq

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/transport"
)

const longestName = 255

// lockName ends in .lock; a name that would be too long is made of its hash.
func lockName(queue string) string {
	name := queue + ".lock"
	if len(name) > longestName {
		sum := sha256.Sum256([]byte(queue))
		name = fmt.Sprintf("amqpretry.%x.lock", sum)
	}

	return name
}

// lock keeps two runs from taking messages out of one dead-letter queue at a time. It is an exclusive queue, which the broker deletes as soon
// as its connection is gone, however that ended. Its connection must be the run's own, since the owner may declare it again.
func (q *Queue) lock(ctx context.Context, connection *transport.Connection) error {
	link, err := connection.TryLink(ctx)
	if err != nil {
		return err
	}
	channel, err := link.Channel()
	if err != nil {
		return err
	}
	defer channel.Close()

	name := lockName(q.name)
	_, err = channel.QueueDeclare(name, false, true, true, false, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeClassic})
	if e := (*amqp091.Error)(nil); errors.As(err, &e) && e.Code == amqp091.ResourceLocked {
		return &BusyError{Queue: q.name, Lock: name, Err: err}
	}

	return topology.Explain(topology.KindQueue, name, err)
}
