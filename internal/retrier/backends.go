package retrier

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/consumer"
	"github.com/amqpretry/watermill-retry/internal/publish"
)

// backendAge is how long what was declared of a backend is taken to be there.
const backendAge = time.Minute

// backends declares what backends share: more than a hundred objects, so not for each queue that has a part in one.
type backends struct {
	mu     sync.Mutex
	shared map[string]*sharedBackend // by name
}

// sharedBackend is the declaration of one of them.
type sharedBackend struct {
	publish.Flight
	missed time.Time // when a part of a plan could not be declared last, guarded by backends.mu
}

// declare declares a plan, with what its backend shares unless that was declared a moment ago. After an error the whole
// is declared next time. It waits no longer than ctx for a declaration that another caller has started.
func (b *backends) declare(ctx context.Context, channel topology.Channel, plan topology.Plan) error {
	if plan.Backend == nil {
		return plan.Declare(channel)
	}

	shared, since := b.of(plan.Backend.Name())
	if err := shared.DoWith(ctx, since, func() error { return plan.Backend.Shared().Declare(channel) }); err != nil {
		return err
	}
	err := plan.DeclareOwn(channel)
	if err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		shared.missed = time.Now()
	}

	return err
}

// of returns a backend, and since when it must have been declared.
func (b *backends) of(name string) (shared *sharedBackend, since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.shared == nil {
		b.shared = map[string]*sharedBackend{}
	}
	if b.shared[name] == nil {
		b.shared[name] = &sharedBackend{}
	}
	shared, since = b.shared[name], time.Now().Add(-backendAge)
	if shared.missed.After(since) {
		since = shared.missed
	}

	return shared, since
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
