package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/management"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// safety is what keeps browsing from losing messages: a quorum queue counts how often a message was given back, and
// drops it, or dead-letters it, when that is more than its delivery limit.
type safety struct {
	// limit of the queue; noLimit if it has none, or none that a person could reach.
	limit int64
	// requeue is how messages go back: see block.giveBack. Then a browse counts only when its process, or its connection,
	// has died.
	requeue bool
	quorum  bool
	// unseen tells that a policy may have another limit, of which nobody has told.
	unseen bool
}

const noLimit = math.MaxInt32

// leastLimit is the least with which browsing is safe at all: half of it is for lost connections, and for others.
const leastLimit = 4

// safety finds out what the delivery limit of the queue is.
func (q *Queue) safety(ctx context.Context, link *connection.Link) (safety, error) {
	s := safety{limit: noLimit, requeue: rabbitmq.AtLeast(link.Version(), 4, 3)}

	arguments, policy, seen, err := q.arguments(ctx, link)
	if access := (*topology.AccessError)(nil); errors.As(err, &access) {
		return s, &UnsafeError{Queue: q.name, Found: "its delivery limit is unknown: " +
			(&AccessError{Access: access}).Error(),
			Do: "grant configure on it, or configure the management API", Err: err}
	}
	if conflict := (*topology.ConflictError)(nil); errors.As(err, &conflict) {
		return s, &UnsafeError{Queue: q.name, Found: "its delivery limit is unknown (AMQP does not show the " +
			"argument " + conflict.Argument + ")", Do: "configure the management API", Err: err}
	}
	if err != nil {
		return s, err
	}

	switch arguments[amqp091.QueueTypeArg] {
	case amqp091.QueueTypeQuorum:
		s.limit, s.quorum = min(limitOf(arguments, link.Version()), policy), true
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

// arguments of the queue, and the delivery limit that a policy of the broker gives it, if that can be seen. The
// management API tells both. AMQP has no question for either: so the queue is declared as it is believed to be, which
// changes nothing of a queue that is there, and the broker answers with what is different. Policies stay unseen.
func (q *Queue) arguments(ctx context.Context, link *connection.Link) (arguments amqp091.Table, policy int64, seen bool,
	err error) {
	api := q.client.config.Management
	if api.URL == "" {
		arguments, err = argumentsOf(q.client.asker(link), q.name)
		return arguments, noLimit, false, err
	}

	client, err := management.New(api.URL, cmp.Or(api.VHost, link.Config.Vhost, "/"), api.HTTPClient)
	if err != nil {
		return nil, 0, false, err
	}
	found, err := client.Queue(ctx, q.name)
	for began := time.Now(); err == nil && found.Effective == nil && time.Since(began) < statisticsTime &&
		!rabbitmq.AtLeast(link.Version(), 4, 3); {
		select {
		case <-time.After(statisticsTime / 30):
		case <-ctx.Done():
			return nil, 0, false, context.Cause(ctx)
		}
		found, err = client.Queue(ctx, q.name)
	}
	if err != nil {
		return nil, 0, false, err
	}
	arguments, policy = amqp091.Table(found.Arguments), noLimit
	if arguments == nil {
		arguments = amqp091.Table{}
	}
	if arguments[amqp091.QueueTypeArg] == nil {
		arguments[amqp091.QueueTypeArg] = found.Type
	}
	if limit, ok := found.Effective["delivery-limit"].(int64); ok &&
		(limit >= 0 || !rabbitmq.AtLeast(link.Version(), 4, 0)) {
		policy = max(0, limit)
	}

	return arguments, policy, found.Effective != nil, nil
}

// statisticsTime is how long the management API may take to know a queue: it gets its statistics every 5 seconds.
const statisticsTime = 15 * time.Second

// unseen is the refusal of a queue that browsing might empty: counted says what makes that possible.
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

// limitOf is the delivery limit that a quorum queue with these arguments has.
func limitOf(arguments amqp091.Table, version string) int64 {
	limit, given := arguments["x-delivery-limit"].(int64)
	switch {
	case given && limit >= 0:
		return min(limit, noLimit)
	case given && !rabbitmq.AtLeast(version, 4, 0):
		return 0 // for which it takes a negative one
	case !given && rabbitmq.AtLeast(version, 4, 0):
		return 20
	default:
		return noLimit
	}
}

// mostArguments bounds the questions: a queue has few arguments that are compared.
const mostArguments = 24

// argumentsOf finds out the arguments of a queue that exists, beginning with those of a dead-letter queue of ours.
func argumentsOf(a asker, queue string) (amqp091.Table, error) {
	plan, err := topology.New("any", config.Policy{Mode: config.ModeDeadLetter, Scope: config.ScopeShared},
		topology.Names{})
	if err != nil {
		return nil, err
	}
	arguments, flags := plan.Queues[len(plan.Queues)-1].Arguments, map[string]bool{"durable": true}

	for range mostArguments {
		err = declareOnce(a, queue, flags, arguments)
		conflict := (*topology.ConflictError)(nil)
		if !errors.As(err, &conflict) {
			return arguments, err
		}
		switch conflict.Argument {
		case "durable", "auto_delete", "exclusive":
			flags[conflict.Argument] = !flags[conflict.Argument]
		case amqp091.QueueTypeArg:
			if conflict.Found != amqp091.QueueTypeQuorum {
				return amqp091.Table{amqp091.QueueTypeArg: conflict.Found}, nil
			}
			return nil, err
		default:
			if conflict.Argument == "" {
				return nil, err
			}
			setArgument(arguments, conflict.Argument, conflict.Found)
		}
	}

	return nil, err
}

// setArgument takes over what the broker has said of an argument. It does not say clearly of what type it is.
func setArgument(arguments amqp091.Table, name, found string) {
	if found == "none" {
		delete(arguments, name)
		return
	}
	var value any = strings.Trim(found, `"`)
	if n, err := strconv.ParseInt(found, 10, 64); err == nil && arguments[name] != n {
		value = n
	} else if b, err := strconv.ParseBool(found); err == nil && arguments[name] != b {
		value = b
	}
	arguments[name] = value
}

// declareOnce has a channel of its own, as the broker closes it with a refusal.
func declareOnce(a asker, queue string, flags map[string]bool, arguments amqp091.Table) error {
	err := a.onChannel(func(channel *amqp091.Channel) error {
		_, err := channel.QueueDeclare(queue, flags["durable"], flags["auto_delete"], flags["exclusive"], false,
			arguments)
		return err
	})

	return topology.Explain(topology.KindQueue, queue, err)
}
