package publish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/retry"
)

const (
	// targetAge is how long what belongs to a target is taken to be there: the queue, and what was declared.
	targetAge = 30 * time.Second
	// sharedAge is that for what all targets share. No publish tells that a lower level is missing.
	sharedAge = 10 * time.Minute
)

var (
	// errNoQueue means that the queue of a target does not exist.
	errNoQueue = errors.New("the queue does not exist")
	// errNoLanding means that an operator has not provisioned the landing queue of a target.
	errNoLanding = errors.New("the landing queue is not provisioned; declare what topology.Definitions prints")
)

// delayObjects declare what messages with a delay need, each once for all that wait for it.
type delayObjects struct {
	settings DelaySettings
	declared Declared

	mu    sync.Mutex
	plans map[topology.Target]topology.Plan // the parts of the backend that were used
}

// used are the parts of the backend that were used.
func (o *delayObjects) used() []topology.Plan {
	o.mu.Lock()
	defer o.mu.Unlock()

	return slices.Collect(maps.Values(o.plans))
}

// ensure declares what a batch needs, unless that was done on this link a short time ago, and after something was
// missing.
func (o *delayObjects) ensure(ctx context.Context, link *connection.Link, b *delayBatch, missing time.Time) error {
	after := latest(missing, time.Now().Add(-targetAge))
	if exchange := b.target.Exchange; exchange != "" && o.settings.Declare {
		err := o.declared.Of(exchange).Declare(ctx, link, after, func() error {
			return link.OnChannel(func(channel *amqp091.Channel) error {
				return topology.Explain(topology.KindExchange, exchange, o.settings.DeclareExchange(channel, exchange))
			})
		})
		if err != nil {
			return err
		}
	}
	if !b.waits() {
		return nil
	}
	if err := o.declared.Of(b.target).Declare(ctx, link, after, func() error {
		return o.declareTarget(context.WithoutCancel(ctx), link, b, missing) // others wait for it as well
	}); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.plans[b.target] = b.plan

	return nil
}

// declareTarget declares the ladder and the landing queue of a target. The queue comes first: nothing is declared for one
// that does not exist.
func (o *delayObjects) declareTarget(ctx context.Context, link *connection.Link, b *delayBatch, missing time.Time) error {
	if err := o.checkQueue(link, b.target); err != nil {
		return err
	}
	if !o.settings.Declare {
		return o.checkLanding(link, b.plan)
	}
	declare := func(plan topology.Plan) error {
		return link.OnChannel(func(channel *amqp091.Channel) error {
			return o.declared.declarePlan(ctx, channel, plan, link, latest(missing, time.Now().Add(-sharedAge)))
		})
	}
	err := declare(b.plan)
	if isMissing(err) {
		// The exchange of all targets is gone. Back without the bindings of others, it would take their messages for
		// unroutable, so these come back with it.
		for _, plan := range o.used() {
			if err := declare(plan); err != nil {
				o.settings.Logger.Error("Cannot declare the landing queue of another topic", err, nil)
			}
		}
		err = declare(b.plan)
	}
	if err == nil && !missing.IsZero() {
		o.settings.Connection.Emit(retry.Event{Kind: retry.EventTopologyRepaired, Topic: b.topic,
			Queue: b.target.String()})
	}

	return err
}

// checkQueue finds out whether a target's queue exists: its messages are confirmed by the backend, whose broker knows
// only later that nobody gets them. A queue that is down, or that may not be looked at, is taken to exist.
func (o *delayObjects) checkQueue(link *connection.Link, target topology.Target) error {
	if target.Exchange != "" {
		return nil
	}
	err := link.OnChannel(func(channel *amqp091.Channel) error {
		_, err := channel.QueueDeclarePassive(target.Key, true, false, false, false, nil)
		return err
	})
	reason := reasonOf(err)
	switch {
	case err == nil:
		return nil
	case reason == nil || reason.Code == amqp091.ChannelError || link.IsClosed():
		return err
	case reason.Code == amqp091.NotFound && strings.Contains(reason.Reason, "no queue '"):
		return fmt.Errorf("%w: %w", errNoQueue, err)
	default:
		o.settings.Logger.Info("Cannot check that the queue of a delayed message exists", watermill.LogFields{
			"amqp_queue_name": target.Key, "error": err.Error(),
		})
		return nil
	}
}

// checkLanding finds out whether an operator has provisioned the landing queue of a target: without it, its messages are
// unroutable, and no publish tells. One that may not be looked at is taken to exist.
func (o *delayObjects) checkLanding(link *connection.Link, plan topology.Plan) error {
	for _, q := range plan.Queues {
		err := link.OnChannel(func(channel *amqp091.Channel) error {
			_, err := channel.QueueDeclarePassive(q.Name, true, false, false, false, nil)
			return err
		})
		if reason := reasonOf(err); reason != nil && reason.Code == amqp091.NotFound {
			return fmt.Errorf("%w: %w", errNoLanding, topology.Explain(topology.KindQueue, q.Name, err))
		}
	}

	return nil
}
