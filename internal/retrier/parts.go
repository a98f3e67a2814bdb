package retrier

import (
	"cmp"
	"context"
	"slices"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/retry"
)

// What a processor has in common with a retrier.

// Backends declares plans: what several of them share not each time.
type Backends struct{ backends backends }

// Declare declares a plan, with what its backend shares unless that was declared a moment ago. It waits no longer than
// ctx for a declaration that another caller has started.
func (b *Backends) Declare(ctx context.Context, channel *amqp091.Channel, plan topology.Plan) error {
	return b.backends.declare(ctx, channel, plan)
}

// PlanDepths returns the number of ready messages in the queues of plans, and in others beside them, sorted by name.
// With an error it returns those that it could read.
func (o *Observer) PlanDepths(
	ctx context.Context, plans []topology.Plan, others ...retry.QueueDepth,
) ([]retry.QueueDepth, error) {
	queues := queuesOf(plans)
	for _, q := range others {
		queues[q.Queue] = q
	}

	depths, err := o.depthsOf(ctx, queues)
	slices.SortFunc(depths, func(a, b retry.QueueDepth) int { return cmp.Compare(a.Queue, b.Queue) })

	return depths, err
}
