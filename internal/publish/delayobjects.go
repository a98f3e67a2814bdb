package publish

import (
	"context"
	"errors"
	"fmt"
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

// objects declare what messages with a delay need, each once for all that wait for it.
type delayObjects struct {
	settings DelaySettings
	backend  topology.Backend

	mu        sync.Mutex
	link      *connection.Link // on which everything was declared
	since     time.Time        // it is used
	shared    *Flight
	exchanges map[string]*Flight
	targets   map[topology.Target]*target
}

type target struct {
	Flight
	plan topology.Plan
	used bool // something has waited for it
}

func newDelayObjects(settings DelaySettings, backend topology.Backend) delayObjects {
	return delayObjects{settings: settings, backend: backend, shared: &Flight{},
		exchanges: map[string]*Flight{}, targets: map[topology.Target]*target{}}
}

// plans are the parts of the backend that were used.
func (o *delayObjects) plans() []topology.Plan {
	o.mu.Lock()
	defer o.mu.Unlock()

	var plans []topology.Plan
	for _, t := range o.targets {
		if t.used {
			plans = append(plans, t.plan)
		}
	}

	return plans
}

// of returns what a delayBatch needs, and since when a link is used: what was declared before counts no more.
func (o *delayObjects) of(link *connection.Link, b *delayBatch) (exchange *Flight, t *target, since time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()

	if o.link != link {
		o.link, o.since = link, time.Now()
	}
	if exchange = o.exchanges[b.target.Exchange]; exchange == nil {
		exchange = &Flight{}
		o.exchanges[b.target.Exchange] = exchange
	}
	if t = o.targets[b.target]; t == nil {
		t = &target{plan: b.plan}
		o.targets[b.target] = t
	}

	return exchange, t, o.since
}

// ensure declares what a delayBatch needs, unless that was done on this link a short time ago, and after something was
// missing.
func (o *delayObjects) ensure(ctx context.Context, link *connection.Link, b *delayBatch, missing time.Time) error {
	now := time.Now()
	exchange, target, since := o.of(link, b)
	if missing.After(since) {
		since = missing
	}
	if b.target.Exchange != "" && o.settings.Declare {
		err := exchange.Do(ctx, latest(since, now.Add(-targetAge)), func() error {
			return o.declareExchange(link, b.target.Exchange)
		})
		if err != nil {
			return err
		}
	}
	if !b.waits() {
		return nil
	}
	err := target.Do(ctx, latest(since, now.Add(-targetAge)), func() error {
		// The queue comes first: nothing is declared for one that does not exist.
		if err := o.checkQueue(link, b.target); err != nil {
			return err
		}
		if !o.settings.Declare {
			return o.checkLanding(link, target.plan)
		}
		err := o.declare(ctx, link, target.plan, latest(since, now.Add(-sharedAge)))
		if isMissing(err) {
			// The exchange of all targets is gone. Back without the bindings of others, it would take their messages
			// for unroutable, so these come back with it.
			for _, part := range o.plans() {
				if err := o.declare(ctx, link, part, now); err != nil {
					o.settings.Logger.Error("Cannot declare the landing queue of another topic", err, nil)
				}
			}
			err = o.declare(ctx, link, target.plan, now)
		}
		if err != nil {
			return err
		}
		if !missing.IsZero() {
			o.settings.Connection.Emit(retry.Event{Kind: retry.EventTopologyRepaired, Topic: b.topic,
				Queue: b.target.String()})
		}

		return nil
	})
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	target.used = true

	return nil
}

// declare declares what all targets share, unless that was done since then, and a target's part.
func (o *delayObjects) declare(ctx context.Context, link *connection.Link, part topology.Plan, since time.Time) error {
	// Without the end of the first caller: others wait for this as well.
	if err := o.shared.Do(context.WithoutCancel(ctx), since, func() error {
		return o.with(link, func(channel *amqp091.Channel) error { return o.backend.Shared().Declare(channel) })
	}); err != nil {
		return err
	}

	return o.with(link, func(channel *amqp091.Channel) error { return part.DeclareOwn(channel) })
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}

	return b
}

func (o *delayObjects) declareExchange(link *connection.Link, exchange string) error {
	return o.with(link, func(channel *amqp091.Channel) error {
		return topology.Explain(topology.KindExchange, exchange, o.settings.DeclareExchange(channel, exchange))
	})
}

// checkQueue finds out whether a target's queue exists: its messages are confirmed by the backend, whose broker knows
// only later that nobody gets them. A queue that is down, or that may not be looked at, is taken to exist.
func (o *delayObjects) checkQueue(link *connection.Link, target topology.Target) error {
	if target.Exchange != "" {
		return nil
	}
	err := o.with(link, func(channel *amqp091.Channel) error {
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
		err := o.with(link, func(channel *amqp091.Channel) error {
			_, err := channel.QueueDeclarePassive(q.Name, true, false, false, false, nil)
			return err
		})
		if reason := reasonOf(err); reason != nil && reason.Code == amqp091.NotFound {
			return fmt.Errorf("%w: %w", errNoLanding, topology.Explain(topology.KindQueue, q.Name, err))
		}
	}

	return nil
}

// with calls do with a channel of its own, as the broker closes it at the first error.
func (o *delayObjects) with(link *connection.Link, do func(*amqp091.Channel) error) error {
	channel, err := link.Channel()
	if err != nil {
		return fmt.Errorf("cannot open a channel: %w", err)
	}
	defer channel.Close()

	return do(channel)
}
