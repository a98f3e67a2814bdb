package retrier

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/consumer"
)

// backendAge is how long what was declared of a backend is taken to be there.
const backendAge = time.Minute

// backends declares what backends share: more than a hundred objects, so not for each queue that has a part in one.
type backends struct {
	mu       sync.Mutex
	declared map[string]time.Time // when, by name
}

// declare declares a plan, with what its backend shares unless that was declared a moment ago. After an error the whole
// is declared next time.
func (b *backends) declare(channel topology.Channel, plan topology.Plan) error {
	if plan.Backend == nil {
		return plan.Declare(channel)
	}
	if err := b.share(channel, plan.Backend); err != nil {
		return err
	}
	err := plan.DeclareOwn(channel)
	if err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.declared, plan.Backend.Name())
	}

	return err
}

// share declares what a backend shares. Those that come meanwhile wait for it.
func (b *backends) share(channel topology.Channel, backend topology.Backend) error {
	b.mu.Lock()
	defer b.mu.Unlock()

	name, now := backend.Name(), time.Now()
	if now.Sub(b.declared[name]) < backendAge {
		return nil
	}
	if err := backend.Shared().Declare(channel); err != nil {
		return err
	}
	if b.declared == nil {
		b.declared = map[string]time.Time{}
	}
	b.declared[name] = now

	return nil
}

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
