package amqpretry

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/observe"
	"github.com/amqpretry/watermill-retry/retry"
)

// QueueDepths returns the number of ready messages in queues of the retrier, sorted by name. These
// are the retry queues and dead-letter queues of all topics that are subscribed to through this
// retrier, under their present policies. The queues that its delay publishers have used come with
// them.
//
// It asks the broker over AMQP, by a connection of its own that the first call opens: the
// management plugin is not needed. A topic counts until its last subscription ends; with a stock
// subscriber, which does not tell that, until Close.
//
// Where some of it cannot be found out, it gives the rest and an error; at the end of ctx it
// returns, whatever the broker does. middleware/metrics asks it at each scrape.
func (r *Retrier) QueueDepths(ctx context.Context) ([]retry.QueueDepth, error) {
	used := append(r.delayPlans(), r.registry.plans()...)
	depths, err := r.observer.QueueDepths(ctx, observe.QueuesOf(used))
	errs := []error{err}
	for _, ladder := range r.unusedLadders(used) {
		queues := observe.QueuesOf([]topology.Plan{{Ladder: ladder}})
		unroutable := maps.Clone(queues)
		maps.DeleteFunc(unroutable, func(_ string, q retry.QueueDepth) bool {
			return q.Role != retry.QueueRoleUnroutable
		})
		_, err := r.observer.QueueDepths(ctx, unroutable)
		if reason := (*amqp091.Error)(nil); errors.As(err, &reason) && reason.Code == amqp091.NotFound {
			continue // nobody has ever published with a delay
		}
		more, err := r.observer.QueueDepths(ctx, queues)
		depths, errs = append(depths, more...), append(errs, err)
	}
	slices.SortFunc(depths, func(a, b retry.QueueDepth) int { return cmp.Compare(a.Queue, b.Queue) })

	return depths, errors.Join(errs...)
}

// unusedLadders are those of delay publishers that have not waited for a message since they were
// made: it may be years since others did, and their messages are still there.
func (r *Retrier) unusedLadders(used []topology.Plan) []*topology.Ladder {
	known := map[string]bool{}
	for _, plan := range used {
		if plan.Ladder != nil {
			known[plan.Ladder.Name()] = true
		}
	}
	var unused []*topology.Ladder
	for _, p := range r.delayPublishers() {
		if ladder := p.Ladder(); !known[ladder.Name()] {
			known[ladder.Name()] = true
			unused = append(unused, ladder)
		}
	}

	return unused
}
