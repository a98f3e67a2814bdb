package publish

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

const (
	// trialDelay is how long a rejected message of a trial is kept back.
	trialDelay = time.Hour
	// trialExpires removes the queue of a trial that did not come to its end.
	trialExpires = time.Minute
	// trialLook is how long a rejected message is looked for. A queue that does not keep it back has it at once.
	trialLook = 200 * time.Millisecond
	// trialWait is how long the message of a trial may take to arrive.
	trialWait = 5 * time.Second
	trialPoll = 10 * time.Millisecond
)

var errNotDelivered = errors.New("the broker did not deliver the test message")

// DelaysRetries finds out whether the broker keeps a rejected message back, as RabbitMQ does from 4.3 on: with a message
// in a queue of its own, whose name begins with that of a main queue, as permissions may.
func (f *Forwarder) DelaysRetries(ctx context.Context, queue string) (bool, error) {
	link, err := f.connection.TryLink(ctx)
	if err != nil {
		return false, err
	}
	if link.IsBlocked() {
		return false, errBlocked
	}
	channel, err := link.Channel()
	if err != nil {
		return false, err
	}
	defer channel.Close()

	const most = 200 // bytes of a name, which may have 255
	name := wire.Text(queue, most) + ".trial." + watermill.NewShortUUID()
	if _, err := channel.QueueDeclare(name, true, false, false, false, amqp091.Table{
		amqp091.QueueTypeArg: amqp091.QueueTypeQuorum, "x-expires": trialExpires.Milliseconds(),
		"x-delayed-retry-type": "failed", "x-delayed-retry-min": trialDelay.Milliseconds(),
	}); err != nil {
		return false, topology.Explain(topology.KindQueue, name, err)
	}
	delays, err := delaysIn(ctx, channel, name)
	if _, undone := channel.QueueDelete(name, false, false, false); err == nil && undone != nil {
		err = undone
	}

	return delays, err
}

func delaysIn(ctx context.Context, channel *amqp091.Channel, queue string) (bool, error) {
	if err := channel.PublishWithContext(ctx, "", queue, false, false, amqp091.Publishing{}); err != nil {
		return false, err
	}
	d, found, err := getWithin(ctx, channel, queue, trialWait)
	switch {
	case err != nil:
		return false, err
	case !found:
		return false, errNotDelivered
	}
	if err := channel.Reject(d.DeliveryTag, true); err != nil {
		return false, err
	}
	_, back, err := getWithin(ctx, channel, queue, trialLook)

	return !back, err
}

// getWithin polls a queue for a message.
func getWithin(
	ctx context.Context, channel *amqp091.Channel, queue string, within time.Duration,
) (d amqp091.Delivery, found bool, err error) {
	for deadline := time.Now().Add(within); ; {
		if d, found, err = channel.Get(queue, false); err != nil || found || time.Now().After(deadline) {
			return d, found, err
		}
		select {
		case <-time.After(trialPoll):
		case <-ctx.Done():
			return d, false, context.Cause(ctx)
		}
	}
}
