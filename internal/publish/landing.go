package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/retry"
)

const (
	// targetAge is how long what belongs to a target is taken to be there: the queue, and what was
	// declared.
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

// delays are what is known of a target of messages with a delay.
type delays struct {
	*DelayPublisher

	plan  topology.Plan // the target's part of the ladder
	added int           // bytes that the broker adds to the headers on the way, at most
	used  atomic.Bool   // the plan
}

// declare declares what a call needs, unless that was done on this link a short time ago, and after
// something was missing.
func (d *delays) declare(ctx context.Context, link *connection.Link, c *call) error {
	after := latest(c.missing, time.Now().Add(-targetAge))
	err := c.declareExchange(ctx, link, after)
	waits := slices.ContainsFunc(c.messages, func(m *outgoing) bool { return m.outcome == open && !m.due.IsZero() })
	if err == nil && waits {
		err = d.own.declared.Of(c.target).Declare(ctx, link, after, func() error {
			return d.declareTarget(context.WithoutCancel(ctx), link, c) // others wait for it as well
		})
		if err == nil {
			d.used.Store(true)
		}
	}
	switch end := context.Cause(ctx); {
	case err != nil && end != nil && errors.Is(err, end):
		return fmt.Errorf("the broker has not yet declared the queues for the delay: %w", err)
	case errors.Is(err, errNoQueue):
		for _, m := range c.open() {
			m.outcome, m.err = unroutable, err
		}
	}

	return err
}

// declareTarget declares the ladder and the landing queue of a target. The queue comes first:
// nothing is declared for one that does not exist.
func (d *delays) declareTarget(ctx context.Context, link *connection.Link, c *call) error {
	if err := d.checkQueue(link, c.target); err != nil {
		return err
	}
	if !d.own.settings.Declare {
		return link.OnChannel(func(channel *amqp091.Channel) error {
			if err := CheckLanding(channel, d.plan); err != nil {
				return fmt.Errorf("%w: %w", errNoLanding, err)
			}
			return nil
		})
	}
	declare := func(plan topology.Plan) error {
		return link.OnChannel(func(channel *amqp091.Channel) error {
			return d.own.declared.declarePlan(ctx, link, channel, plan, latest(c.missing, time.Now().Add(-sharedAge)))
		})
	}
	err := declare(d.plan)
	if isMissing(err) {
		// The exchange of all targets is gone. Back without the bindings of others, it would take
		// their messages for unroutable, so these come back with it.
		for _, plan := range d.Plans() {
			if err := declare(plan); err != nil {
				d.own.settings.Logger.Error("Cannot declare the landing queue of another topic", err, nil)
			}
		}
		err = declare(d.plan)
	}
	if err == nil && !c.missing.IsZero() {
		d.own.settings.Connection.Emit(retry.Event{Kind: retry.EventTopologyRepaired, Topic: c.topic,
			Queue: c.target.String()})
	}

	return err
}

// checkQueue finds out whether a target's queue exists: its messages are confirmed by the ladder,
// whose broker knows only later that nobody gets them. A queue that is down, or that may not be
// looked at, is taken to exist.
func (d *delays) checkQueue(link *connection.Link, target topology.Target) error {
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
		d.own.settings.Logger.Info("Cannot check that the queue of a delayed message exists", watermill.LogFields{
			"amqp_queue_name": target.Key, "error": err.Error(),
		})
		return nil
	}
}

// CheckLanding finds out whether an operator has provisioned the landing queue of a plan: without
// it, what is meant for it is unroutable, and no publish tells. A missing retry queue shows when a
// copy comes back. One that may not be looked at is taken to exist.
func CheckLanding(channel *amqp091.Channel, plan topology.Plan) error {
	for _, q := range plan.ReturnPath().Queues {
		_, err := channel.QueueDeclarePassive(q.Name, true, false, false, false, nil)
		if reason := reasonOf(err); reason != nil && reason.Code == amqp091.NotFound {
			return topology.Explain("", rabbitmq.KindQueue, q.Name, err)
		}
	}

	return nil
}
