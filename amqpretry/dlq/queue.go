package dlq

import (
	"context"
	"errors"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// Queue is a dead-letter queue.
type Queue struct {
	client          *Client
	name, mainQueue string

	place *place // of a queue in which messages wait
}

// Name of the dead-letter queue.
func (q *Queue) Name() string { return q.name }

// MainQueue is the queue whose dead letters lie in it; empty if each message tells its own.
func (q *Queue) MainQueue() string { return q.mainQueue }

// Depth is how many messages it has to give, with those that the broker holds back until their
// x-opt-delivery-time as far as Config.Management tells. Messages that consumers hold are not among
// them. With none that can be counted, and RabbitMQ 4.4 or later without the management API, it is
// a *[HiddenError].
func (q *Queue) Depth(ctx context.Context) (int, error) {
	ready, hidden, err := q.Ready(ctx)
	if err != nil {
		return 0, err
	}
	link, err := q.client.link(ctx)
	if err != nil {
		return 0, err
	}

	return ready + max(0, hidden), q.certain(link, ready, hidden)
}

// Ready is how many messages it has to give, and how many more the broker holds back; -1 where only
// the management API could tell. A classic queue holds none back, whatever is not known.
func (q *Queue) Ready(ctx context.Context) (ready, hidden int, err error) {
	defer func() { err = explainLost("read", q.name, err) }()
	link, err := q.client.link(ctx)
	if err != nil {
		return 0, 0, err
	}
	if ready, err = depth(q.client.asker(link), "dead-letter queue", q.name); err != nil {
		return 0, 0, err
	}
	hidden, err = q.hidden(ctx, link)

	return ready, hidden, err
}

// Consumers is how many consumers the queue has: those of a browse or a run that is at work, and
// others, of which a browse does not see the messages that they hold unacknowledged.
func (q *Queue) Consumers(ctx context.Context) (n int, err error) {
	defer func() { err = explainLost("read", q.name, err) }()
	link, err := q.client.link(ctx)
	if err != nil {
		return 0, err
	}
	found, err := inspect(q.client.asker(link), "dead-letter queue", q.name)

	return found.Consumers, err
}

func depth(a asker, what, name string) (int, error) {
	found, err := inspect(a, what, name)
	return found.Messages, err
}

// inspect tells what the broker says of a queue, if it is there.
func inspect(a asker, what, name string) (amqp091.Queue, error) {
	answer := make(chan amqp091.Queue, 1)
	err := a.onChannel(func(channel *amqp091.Channel) error {
		found, err := channel.QueueDeclarePassive(name, true, false, false, false, nil)
		answer <- found
		return err
	})
	if e := (*amqp091.Error)(nil); errors.As(err, &e) && e.Code == amqp091.NotFound {
		return amqp091.Queue{}, &NoQueueError{Queue: name, What: what, Err: err}
	}

	if err != nil {
		return amqp091.Queue{}, explainAccess(rabbitmq.KindQueue, name, err)
	}

	return <-answer, nil
}

// first takes the first message of a quorum queue that has said it has none, and counts again. It
// says so as well when its leader is away, or has not answered within a quarter of a second.
func (q *Queue) first(a asker, h *holder) (first []*block, total int, err error) {
	b, message, more, err := getBlock(a, q.name, h.add())
	if e := (*amqp091.Error)(nil); errors.As(err, &e) && e.Code == amqp091.ResourceLocked {
		return nil, 0, nil // it has a single active consumer
	}
	if err != nil || !more {
		return nil, 0, explainAccess(rabbitmq.KindQueue, q.name, err)
	}
	b.inbox.put(message.delivery)
	found := amqp091.Queue{}
	for again := 0; again < 3 && found.Messages == 0 && err == nil; again++ {
		found, err = inspect(a, "dead-letter queue", q.name)
	}
	if err != nil {
		_ = b.giveBack(false)
	}

	return []*block{b}, 1 + found.Messages, err
}
