package retrier

import (
	"cmp"
	"context"
	"slices"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/retry"
)

// What a processor has in common with a retrier.

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
