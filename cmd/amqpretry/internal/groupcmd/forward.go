package groupcmd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// window is how many messages are on their way at a time, and how many can be in both queues after
// a kill.
const window = 64

// idle is how long a queue must give nothing to count as empty.
const idle = 500 * time.Millisecond

// copied is what is published in place of a message.
type copied struct {
	exchange, key string
	message       amqp091.Publishing
	fits          bool // into a frame
}

// forward moves the messages of a queue until it gives none. A message leaves the queue after the
// broker has confirmed its copy.
func (c *change) forward(ctx context.Context, queue string, copyOf func(*amqp091.Delivery, int) copied) error {
	channel, err := c.connection.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = channel.Close() }()
	if err := errors.Join(channel.Confirm(false), channel.Qos(window, 0, false)); err != nil {
		return err
	}
	returned := channel.NotifyReturn(make(chan amqp091.Return, window))
	deliveries, err := channel.ConsumeWithContext(ctx, queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for moved := 0; ; {
		batch, err := next(ctx, deliveries)
		if err != nil || batch == nil {
			if moved > 0 {
				c.session.Note("%s: %s moved", queue, cli.Times(moved, "message"))
			}
			return err
		}
		if err := c.publish(ctx, channel, batch, copyOf, returned); err != nil {
			return fmt.Errorf("cannot move the messages of queue %q: %w", queue, err)
		}
		if err := batch[len(batch)-1].Ack(true); err != nil {
			return err
		}
		moved += len(batch)
	}
}

// next are the messages that are at hand; nil if there are none.
func next(ctx context.Context, deliveries <-chan amqp091.Delivery) (batch []amqp091.Delivery, err error) {
	wait := idle
	for len(batch) < window {
		select {
		case d, open := <-deliveries:
			if !open {
				return nil, errors.New("the connection to the broker was lost, or the queue was deleted")
			}
			batch, wait = append(batch, d), 0
		case <-time.After(wait):
			return batch, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}

	return batch, nil
}

// publish returns when the broker has confirmed the copies.
func (c *change) publish(ctx context.Context, channel *amqp091.Channel, batch []amqp091.Delivery,
	copyOf func(*amqp091.Delivery, int) copied, returned <-chan amqp091.Return) error {
	confirms := make([]*amqp091.DeferredConfirmation, len(batch))
	for i := range batch {
		m := copyOf(&batch[i], c.connection.Config.FrameSize)
		if !m.fits {
			return fmt.Errorf("the headers of message %q leave no room in a frame", batch[i].MessageId)
		}
		var err error
		confirms[i], err = channel.PublishWithDeferredConfirmWithContext(ctx, m.exchange, m.key, true, false, m.message)
		if err != nil {
			return err
		}
	}
	for _, confirm := range confirms {
		if taken, err := confirm.WaitContext(ctx); err != nil {
			return err
		} else if !taken {
			return errors.New("the target rejects them: it is full, or its node is down")
		}
	}
	select {
	case r := <-returned: // which comes before its confirm
		return fmt.Errorf("no queue takes key %q of exchange %q", r.RoutingKey, r.Exchange)
	default:
		return nil
	}
}

// moved makes what is published in place of a message of the old queue. One that has come back from
// a retry queue waits once more, for the shortest delay: the services trust the count of a message
// only behind a retry queue of its own.
func (p *part) moved(names topology.Names) func(*amqp091.Delivery, int) copied {
	delays := p.policy.DistinctDelays()
	return func(d *amqp091.Delivery, limit int) copied {
		m := copied{key: p.to}
		m.message, m.fits = codec.AsTaken(d, limit)
		state, kind := wire.Read(d.Headers, wire.Reading{Queue: p.queue, MaxRetries: math.MaxInt32,
			Death: codec.NewestDeath(d.Headers), IsRetryQueue: func(name, delay string) bool {
				return slices.Contains(names.RetryQueues(p.queue, delay), name)
			}})
		switch kind {
		case wire.Fresh, wire.UnknownVersion:
			m.message.Expiration = d.Expiration
			return m
		case wire.Replay:
		default:
			if p.plan.RetryExchange != "" && len(delays) > 0 {
				delay := slices.Min(delays)
				m.message.Headers[header.Delay] = config.FormatDelay(delay)
				m.exchange, m.key = p.plan.Route(state.Count, delay, &m.message)
			}
		}
		m.message.Headers[header.Queue] = p.to

		return m
	}
}

// movedDead makes what is published in place of a dead letter of the old queue: one of the new
// queue, so that a replay sends it there.
func (p *part) movedDead(d *amqp091.Delivery, limit int) copied {
	m := copied{key: p.plan.DeadLetterQueue}
	m.message, m.fits = codec.MovedOf(d, p.queue, limit)
	if wire.Carries(m.message.Headers, p.queue) {
		m.message.Headers[header.Queue] = p.to
	}

	return m
}
