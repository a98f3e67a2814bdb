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
// are subscribed to, and in the queues that delay publishers have used. Where some of it cannot be found out, it returns
// the rest and an error.
func (r *Retrier) QueueDepths(ctx context.Context) ([]retry.QueueDepth, error) {
	queues := depthsOf(append(r.delayPlans(), r.registry.plans()...))
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
	queues, backends := map[string]retry.QueueDepth{}, map[string]bool{}
	for _, plan := range plans {
		for _, q := range plan.Queues {
			if q.Landing {
				continue // AMQP says that it is empty, whatever it holds
			}
			depth := retry.QueueDepth{Queue: q.Name, Role: retry.QueueRoleRetry, MainQueue: plan.Queue, Wait: q.Delay}
			if q.Name == plan.DeadLetterQueue {
				depth.Role = retry.QueueRoleDeadLetter
			}
			if q.Shared {
				depth.MainQueue = ""
			}
			queues[q.Name] = depth
		}
		if plan.Backend != nil && !backends[plan.Backend.Name()] {
			backends[plan.Backend.Name()] = true
			for _, depth := range BackendDepths(plan.Backend) {
				queues[depth.Queue] = depth
			}
		}
	}

	return queues
}

// BackendDepths are the queues that a backend shares.
func BackendDepths(backend topology.Backend) []retry.QueueDepth {
	var depths []retry.QueueDepth
	for _, q := range backend.Shared().Queues {
		depth := retry.QueueDepth{Queue: q.Name, Role: retry.QueueRoleDelay, Wait: backend.Remaining(q)}
		if q.Delay == 0 {
			depth.Role = retry.QueueRoleUnroutable
		}
		depths = append(depths, depth)
	}

	return depths
}
