package retrier

import (
	"errors"
	"fmt"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/consumer"
)

// checkProvisioned looks for the landing queue of a main queue, where an operator provisions it. A missing retry queue
// shows when a copy comes back; a missing landing queue does not, as all that is meant for it is unroutable. A user who
// may not look sees nothing wrong.
func checkProvisioned(channel *amqp091.Channel, queue *consumer.Queue) error {
	for _, q := range queue.Plan.ReturnPath().Queues {
		_, err := channel.QueueDeclarePassive(q.Name, true, false, false, false, nil)
		var refused *amqp091.Error
		if errors.As(err, &refused) && refused.Code == amqp091.NotFound {
			return fmt.Errorf("cannot consume topic %q with exact delays: its landing queue is not provisioned; "+
				"import the file that Retrier.Definitions prints: %w", queue.Topic,
				topology.Explain(topology.KindQueue, q.Name, err))
		}
	}

	return nil
}
