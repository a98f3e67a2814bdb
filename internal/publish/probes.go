package publish

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

const (
	// accessTimeout is how long the broker may take to say whether the default exchange may be
	// written to.
	accessTimeout = 5 * time.Second

	// trialDelay is how long a rejected message of a trial is kept back.
	trialDelay = time.Hour
	// trialExpires removes the queue of a trial that did not come to its end.
	trialExpires = time.Minute
	// trialWait is how long the message of a trial may take to arrive.
	trialWait = 5 * time.Second
	// trialLook is how long a rejected message is waited for. A queue that does not keep it back
	// delivers it at once.
	trialLook = 200 * time.Millisecond
)

var (
	errBlocked      = errors.New("the broker has blocked the connection")
	errNotDelivered = errors.New("the broker did not deliver the test message")
)

// CheckAccess finds out whether the user may publish dead letters by the default exchange, as
// shared retry queues do; with queues of its own, the broker has asked for that when they were
// declared. Without it Subscribe would succeed and the first dead letter be held for ever. The
// error is a *topology.AccessError.
//
// It publishes a message that no queue gets, over the connection that is there to publish: in an
// alarm the broker blocks the connection of whoever publishes, which must not be that of the
// acknowledgements. Where it cannot be found out, nothing is wrong.
func (f *Forwarder) CheckAccess(plan topology.Plan) error {
	if exchange, queue := plan.End(); exchange != "" || queue == "" {
		return nil
	}

	ctx, cancel := context.WithTimeoutCause(f.ctx, accessTimeout, errors.New("the broker does not answer"))
	defer cancel()

	link, err := f.connection.TryLink(ctx)
	if err == nil { // the answer does not depend on the queue
		err = f.access.Declare(ctx, link, time.Time{}, func() error { return checkAccess(ctx, link) })
	}

	access := (*topology.AccessError)(nil)
	if err != nil && !errors.As(err, &access) {
		f.settings.Logger.Info("Cannot check the permission to publish dead letters", watermill.LogFields{
			"amqp_queue_name": plan.Queue, "error": err.Error(),
		})
		err = nil
	}

	return err
}

func checkAccess(ctx context.Context, link *connection.Link) error {
	return onUnblocked(link, func(channel *amqp091.Channel) error {
		return publishTo(ctx, channel, "nobody-"+watermill.NewShortUUID(), amqp091.Publishing{})
	})
}

// publishTo publishes by the default exchange, and tells whether that is permitted, but not whether
// a queue has it.
func publishTo(ctx context.Context, channel *amqp091.Channel, queue string, message amqp091.Publishing) error {
	closed := channel.NotifyClose(make(chan *amqp091.Error, 1))
	if err := channel.PublishWithContext(ctx, "", queue, false, false, message); err != nil {
		return err
	}
	// Its answer comes after the broker has looked at the publish. It needs no permission.
	err := channel.Qos(1, 0, false)
	if err == nil {
		return nil
	}
	if reason := <-closed; reason != nil { // the broker's words, also if the channel was closed before the call
		err = reason
	}

	return topology.Explain(rabbitmq.UsePublish, rabbitmq.KindExchange, "amq.default", err)
}

// onUnblocked is Link.OnChannel for what publishes: an answer could take until the alarm is over,
// for each of many topics.
func onUnblocked(link *connection.Link, do func(*amqp091.Channel) error) error {
	if link.IsBlocked() {
		return errBlocked
	}

	return link.OnChannel(do)
}

// DelaysRetries finds out whether the broker keeps a rejected message back, as RabbitMQ does from
// 4.3 on: with a message in a queue of its own, whose name begins with that of a main queue, as
// permissions may.
//
// Upstream: no delayed retry, and its arguments are ignored without an error.
func (f *Forwarder) DelaysRetries(ctx context.Context, queue string) (delays bool, err error) {
	link, err := f.connection.TryLink(ctx)
	if err != nil {
		return false, err
	}
	const most = 200 // bytes of a name, which may have 255
	name := wire.Text(queue, most) + ".trial." + watermill.NewShortUUID()
	err = onUnblocked(link, func(channel *amqp091.Channel) error {
		if _, err := channel.QueueDeclare(name, true, false, false, false, amqp091.Table{
			amqp091.QueueTypeArg: amqp091.QueueTypeQuorum, "x-expires": trialExpires.Milliseconds(),
			"x-delayed-retry-type": "failed", "x-delayed-retry-min": trialDelay.Milliseconds(),
		}); err != nil {
			return topology.Explain("", rabbitmq.KindQueue, name, err)
		}
		delays, err = delaysIn(ctx, channel, name)
		if _, undone := channel.QueueDelete(name, false, false, false); err == nil {
			err = undone
		}

		return err
	})

	return delays, err
}

func delaysIn(ctx context.Context, channel *amqp091.Channel, queue string) (bool, error) {
	if err := channel.PublishWithContext(ctx, "", queue, false, false, amqp091.Publishing{}); err != nil {
		return false, err
	}
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return false, err
	}
	next := func(within time.Duration) (d amqp091.Delivery, found bool, err error) {
		select {
		case d, found = <-deliveries:
			if !found {
				err = amqp091.ErrClosed
			}
		case <-time.After(within):
		case <-ctx.Done():
			err = context.Cause(ctx)
		}

		return d, found, err
	}
	d, found, err := next(trialWait)
	if err == nil && !found {
		err = errNotDelivered
	}
	if err == nil {
		err = channel.Reject(d.DeliveryTag, true)
	}
	if err != nil {
		return false, err
	}
	_, back, err := next(trialLook)

	return !back, err
}
