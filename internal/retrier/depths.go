package retrier

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/retry"
)

// QueueDepths returns the number of ready messages in the retry queues and the dead-letter queues of all topics that
// are subscribed to, and of the ladders of delay publishers as far as they are declared. Where some of it cannot be
// found out, it returns the rest and an error.
func (r *Retrier) QueueDepths(ctx context.Context) ([]retry.QueueDepth, error) {
	used := append(r.delayPlans(), r.registry.plans()...)
	depths, err := r.observer.depthsOf(ctx, queuesOf(used))
	errs := []error{err}
	for _, backend := range r.unusedBackends(used) {
		queues := queuesOf([]topology.Plan{{Backend: backend}})
		unroutable := maps.Clone(queues)
		maps.DeleteFunc(unroutable, func(_ string, q retry.QueueDepth) bool {
			return q.Role != retry.QueueRoleUnroutable
		})
		_, err := r.observer.depthsOf(ctx, unroutable)
		if reason := (*amqp091.Error)(nil); errors.As(err, &reason) && reason.Code == amqp091.NotFound {
			continue // nobody has ever published with a delay
		}
		more, err := r.observer.depthsOf(ctx, queues)
		depths, errs = append(depths, more...), append(errs, err)
	}
	slices.SortFunc(depths, func(a, b retry.QueueDepth) int { return cmp.Compare(a.Queue, b.Queue) })

	return depths, errors.Join(errs...)
}

// unusedBackends are those of delay publishers that have not waited for a message since they were made: it may be years
// since others did, and their messages are still there.
func (r *Retrier) unusedBackends(used []topology.Plan) []topology.Backend {
	known := map[string]bool{}
	for _, plan := range used {
		if plan.Backend != nil {
			known[plan.Backend.Name()] = true
		}
	}
	var unused []topology.Backend
	for _, p := range r.openPublishers() {
		if backend := p.own.Backend(); !known[backend.Name()] {
			known[backend.Name()] = true
			unused = append(unused, backend)
		}
	}

	return unused
}

func (o *Observer) depthsOf(ctx context.Context, queues map[string]retry.QueueDepth) ([]retry.QueueDepth, error) {
	// In time for some only, it is the dead letters that count most. A backend has many queues, which come last.
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

// queuesOf are the queues beside the main queues, by name.
func queuesOf(plans []topology.Plan) map[string]retry.QueueDepth {
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
