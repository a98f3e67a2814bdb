package retrier

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/retry"
)

// QueueDepths returns the number of ready messages in the retry queues and the dead-letter queues of all topics that
// are subscribed to. Where some of it cannot be found out, it returns the rest and an error.
func (r *Retrier) QueueDepths(ctx context.Context) ([]retry.QueueDepth, error) {
	queues := depthsOf(r.registry.plans())
	counts, err := r.observer.Depths(ctx, slices.Sorted(maps.Keys(queues)))

	var depths []retry.QueueDepth
	for name, messages := range counts {
		depth := queues[name]
		depth.Messages = messages
		depths = append(depths, depth)
	}
	slices.SortFunc(depths, func(a, b retry.QueueDepth) int { return cmp.Compare(a.Queue, b.Queue) })

	return depths, err
}

// depthsOf are the queues beside the main queues, by name.
func depthsOf(plans []topology.Plan) map[string]retry.QueueDepth {
	queues := map[string]retry.QueueDepth{}
	for _, plan := range plans {
		for _, q := range plan.Queues {
			depth := retry.QueueDepth{Queue: q.Name, Role: retry.QueueRoleRetry, MainQueue: plan.Queue}
			if q.Name == plan.DeadLetterQueue {
				depth.Role = retry.QueueRoleDeadLetter
			}
			if q.Shared {
				depth.MainQueue = ""
			}
			queues[q.Name] = depth
		}
	}

	return queues
}
