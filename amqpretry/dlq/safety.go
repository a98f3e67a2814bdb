package dlq

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// safety is what keeps browsing from losing messages: a quorum queue counts how often a message was
// given back, and drops it, or dead-letters it, when that is more than its delivery limit.
type safety struct {
	// limit of the queue; noLimit if it has none, or none that a person could reach.
	limit int64
	// requeue is how messages go back: see block.giveBack. Then a browse counts only when its
	// process, or its connection, has died.
	requeue bool
	quorum  bool
	// unseen tells that a policy may have another limit, of which nobody has told.
	unseen bool
}

const noLimit = math.MaxInt32

// leastLimit is the least with which browsing is safe at all: half of it is for lost connections,
// and for others.
const leastLimit = 4

// safety finds out what the delivery limit of the queue is.
func (q *Queue) safety(ctx context.Context, link *connection.Link) (safety, error) {
	s := safety{limit: noLimit, requeue: rabbitmq.CountsFailuresOnly(link.Version())}

	wait := statisticsTime
	if s.requeue {
		wait = 0
	}
	believed, err := argumentsOfOurs()
	if err != nil {
		return s, err
	}
	if q.place != nil {
		believed = q.place.arguments
	}
	found, seen, err := q.client.describe(ctx, link, q.name, believed, wait)
	if access := (*topology.AccessError)(nil); errors.As(err, &access) {
		return s, &UnsafeError{Queue: q.name, Found: "its delivery limit is unknown: " +
			(&AccessError{Access: access}).Error(),
			Do: "grant configure on it, or configure the management API", Err: err}
	}
	if conflict := (*topology.ConflictError)(nil); errors.As(err, &conflict) {
		if found.Type == amqp091.QueueTypeClassic { // which has no delivery limit
			s.requeue = false
			return s, nil
		}
		return s, &UnsafeError{Queue: q.name, Found: "its delivery limit is unknown (AMQP does not show the " +
			"argument " + conflict.Argument + ")", Do: "configure the management API", Err: err}
	}
	if err != nil {
		return s, err
	}

	switch found.Type {
	case amqp091.QueueTypeQuorum:
		s.limit, s.quorum = limitOf(found, link.Version()), true
		s.unseen = !seen && !q.client.config.NoDeliveryLimitPolicy
		if s.unseen && !s.requeue {
			return s, q.unseen(fmt.Sprintf("RabbitMQ %s counts each browse", link.Version()))
		}
	case amqp091.QueueTypeStream:
		return s, fmt.Errorf("cannot read dead-letter queue %q: it is a stream, and messages cannot be removed "+
			"from streams", q.name)
	default: // classic queues count nothing
		s.requeue = false
	}
	if s.limit < leastLimit || s.limit != noLimit && !s.requeue {
		return s, s.reachable(q.name)
	}

	return s, nil
}

// unseen is the refusal of a queue that browsing might empty: counted says what makes that
// possible.
func (q *Queue) unseen(counted string) error {
	found := counted + ", and a policy with a delivery-limit, which AMQP does not show, would then drop messages"
	if q.client.config.Management.URL != "" {
		found = counted + ", and the management API does not show whether a policy limits that count (it may have no " +
			"statistics)"
	}

	return &UnsafeError{Queue: q.name, Found: found, Do: "configure the management API, or confirm that no policy " +
		"sets a delivery-limit (Config.NoDeliveryLimitPolicy, --no-delivery-limit-policy)"}
}

// reachable is the refusal of a queue whose limit browsing might reach.
func (s safety) reachable(queue string) error {
	counts := "each browse counts"
	if s.requeue {
		counts = "each browse whose process or connection dies counts"
	}

	return &UnsafeError{Queue: queue, Found: fmt.Sprintf("it has a delivery limit of %d, and %s", s.limit, counts),
		Do: "move its messages, by a shovel, to a queue with x-delivery-limit 2147483647, or delete the policy that " +
			"limits it"}
}

// check judges the counter of a message that was handed out.
func (s safety) check(q *Queue, headers amqp091.Table) error {
	var count int64
	switch n := headers[header.DeliveryCount].(type) {
	case int64:
		count = n
	case int32:
		count = int64(n)
	}
	switch {
	case s.limit != noLimit && count >= s.limit/2:
		return s.reachable(q.name)
	case s.unseen && count >= leastLimit/2:
		return q.unseen(fmt.Sprintf("a message has come back %d times from clients that died or rejected it", count))
	default:
		return nil
	}
}

// limitOf is the delivery limit that a quorum queue has by its arguments and its policies.
func limitOf(q httpapi.Queue, version string) int64 {
	limit, given := q.Arguments["x-delivery-limit"].(int64)
	switch {
	case given && limit >= 0:
		limit = min(limit, noLimit)
	case given && !rabbitmq.LimitsByDefault(version):
		limit = 0 // for which it takes a negative one
	case !given && rabbitmq.LimitsByDefault(version):
		limit = rabbitmq.DefaultLimit
	default:
		limit = noLimit
	}
	if policy, ok := q.Effective["delivery-limit"].(int64); ok &&
		(policy >= 0 || !rabbitmq.LimitsByDefault(version)) {
		limit = min(limit, max(0, policy))
	}

	return limit
}

// argumentsOfOurs are those of a dead-letter queue that a service declares.
func argumentsOfOurs() (amqp091.Table, error) {
	plan, err := topology.New("any", config.Policy{Mode: config.ModeDeadLetter, Strategy: config.StrategyShared},
		topology.Names{})
	if err != nil {
		return nil, err
	}

	return plan.Queues[len(plan.Queues)-1].Arguments, nil
}
