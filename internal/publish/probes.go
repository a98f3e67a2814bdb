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
)

// accessTimeout is how long the broker may take to say whether the default exchange may be written
// to.
const accessTimeout = 5 * time.Second

var errBlocked = errors.New("the broker has blocked the connection")

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
