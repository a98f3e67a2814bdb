package dlq

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

const longestName = 255

// lockName ends in .lock; a name that would be too long is made of its hash.
func lockName(queue string) string {
	name := queue + ".lock"
	if len(name) > longestName {
		sum := sha256.Sum256([]byte(queue))
		name = fmt.Sprintf("amqpretry.%x.lock", sum)
	}

	return name
}

// lockWait is how long to wait for another run to end.
const lockWait = 5 * time.Second

// lock keeps two runs from working on one dead-letter queue at a time: they would take the same
// messages, or give them back in another order. It is an exclusive queue, which the broker deletes
// as soon as its connection is gone, however that ended. The connection must be the run's own,
// since the owner may declare it again.
func (q *Queue) lock(ctx context.Context, link *connection.Link) error {
	for began := time.Now(); ; {
		err := q.tryLock(link)
		if busy := (*BusyError)(nil); !errors.As(err, &busy) || time.Since(began) > lockWait {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (q *Queue) tryLock(link *connection.Link) error {
	name := lockName(q.name)
	err := q.client.asker(link).onChannel(func(channel *amqp091.Channel) error {
		_, err := channel.QueueDeclare(name, false, true, true, false,
			amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeClassic})
		return err
	})
	if e := (*amqp091.Error)(nil); errors.As(err, &e) && e.Code == amqp091.ResourceLocked {
		return &BusyError{Queue: q.name, Lock: name, Err: err}
	}

	if err = explainAccess(rabbitmq.KindQueue, name, err); err != nil {
		return fmt.Errorf("cannot lock dead-letter queue %q: %w", q.name, err)
	}

	return nil
}

// lockBrowse is the lock of a browse. All browses of a client share a connection, and a place to
// wait, for each queue.
func (q *Queue) lockBrowse(ctx context.Context) (unlock func(), err error) {
	place := q.client.place(q.name)
	wait := time.NewTimer(lockWait)
	defer wait.Stop()
	select {
	case place <- struct{}{}:
	case <-wait.C:
		return nil, &BusyError{Queue: q.name, Lock: lockName(q.name), Err: errOwnBrowse}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() {
		if err != nil {
			<-place
		}
	}()

	link, err := q.client.locking(ctx)
	if err != nil {
		return nil, err
	}
	if err := q.lock(ctx, link); err != nil {
		return nil, err
	}

	return func() {
		_ = q.client.asker(link).onChannel(func(channel *amqp091.Channel) error {
			_, err := channel.QueueDelete(lockName(q.name), false, false, false)
			return err
		}) // without the connection it is gone as well
		<-place
	}, nil
}

var errOwnBrowse = errors.New("another browse of this client")
