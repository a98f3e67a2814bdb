package observe

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/retry"
)

// PlanDepths returns the number of ready messages in the queues of plans, and in others beside them, sorted by name.
// With an error it returns those that it could read.
func (o *Observer) PlanDepths(
	ctx context.Context, plans []topology.Plan, others ...retry.QueueDepth,
) ([]retry.QueueDepth, error) {
	queues := QueuesOf(plans)
	for _, q := range others {
		queues[q.Queue] = q
	}

	depths, err := o.QueueDepths(ctx, queues)
	slices.SortFunc(depths, func(a, b retry.QueueDepth) int { return cmp.Compare(a.Queue, b.Queue) })

	return depths, err
}

// QueueDepths returns the depths of queues, as far as they can be read.
func (o *Observer) QueueDepths(ctx context.Context, queues map[string]retry.QueueDepth) ([]retry.QueueDepth, error) {
	// In time for some only, it is the dead letters that count most. A ladder has many queues, which come last.
	names := slices.SortedFunc(maps.Keys(queues), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(queues[a].Role), rank(queues[b].Role)), cmp.Compare(a, b))
	})
	counts, err := o.Depths(ctx, names)

	var depths []retry.QueueDepth
	for name, messages := range counts {
		depth := queues[name]
		depth.Messages = messages
		depths = append(depths, depth)
	}

	return depths, err
}

func rank(role retry.QueueRole) int {
	switch role {
	case retry.QueueRoleDeadLetter, retry.QueueRoleUnroutable, retry.QueueRoleFailed:
		return 0
	case retry.QueueRoleRetry:
		return 1
	default:
		return 2
	}
}

// QueuesOf are the queues beside the main queues, by name.
func QueuesOf(plans []topology.Plan) map[string]retry.QueueDepth {
	queues, ladders := map[string]retry.QueueDepth{}, map[string]bool{}
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
		if plan.Ladder != nil && !ladders[plan.Ladder.Name()] {
			ladders[plan.Ladder.Name()] = true
			for _, depth := range LadderDepths(plan.Ladder) {
				queues[depth.Queue] = depth
			}
		}
	}

	return queues
}

// LadderDepths are the queues that a ladder shares.
func LadderDepths(ladder *topology.Ladder) []retry.QueueDepth {
	var depths []retry.QueueDepth
	for _, q := range ladder.Shared().Queues {
		depth := retry.QueueDepth{Queue: q.Name, Role: retry.QueueRoleDelay, Wait: ladder.Remaining(q)}
		if q.Delay == 0 {
			depth.Role = retry.QueueRoleUnroutable
		}
		depths = append(depths, depth)
	}

	return depths
}
