package amqpretry

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/middleware"
)

// QueueDepths tells how many messages lie ready in the retry queues and the dead-letter queues of all topics that this plug has
// subscribed to, under their present policies, sorted by name. It asks the broker over AMQP, by a connection of its own that the first
// call opens: the management plugin is not needed.
//
// Where some of it cannot be found out, it gives the rest and an error; at the end of ctx it returns, whatever the broker does.
// middleware/metrics asks it at each scrape.
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
