package plug

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/middleware"
)

// QueueDepths returns the number of ready messages in the retry queues and the dead-letter queues of all topics that are subscribed to.
// Where some of it cannot be found out, it returns the rest and an error.
func (p *Plug) QueueDepths(ctx context.Context) ([]middleware.QueueDepth, error) {
	queues := depthsOf(p.registry.plans())
	counts, err := p.observer.Depths(ctx, slices.Sorted(maps.Keys(queues)))

	var depths []middleware.QueueDepth
	for name, messages := range counts {
		depth := queues[name]
		depth.Messages = messages
		depths = append(depths, depth)
	}
	slices.SortFunc(depths, func(a, b middleware.QueueDepth) int { return cmp.Compare(a.Queue, b.Queue) })

	return depths, err
}

// depthsOf are the queues beside the main queues, by name.
func depthsOf(plans []topology.Plan) map[string]middleware.QueueDepth {
	queues := map[string]middleware.QueueDepth{}
	for _, plan := range plans {
		for _, q := range plan.Queues {
			depth := middleware.QueueDepth{Queue: q.Name, Role: middleware.QueueRoleRetry, MainQueue: plan.Queue}
			if q.Name == plan.DeadLetterQueue {
				depth.Role = middleware.QueueRoleDeadLetter
			}
			if q.Shared {
				depth.MainQueue = ""
			}
			queues[q.Name] = depth
		}
	}

	return queues
}
