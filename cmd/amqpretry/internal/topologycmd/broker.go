package topologycmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
)

// patience is how long the broker may take for one answer. RabbitMQ from 4.0 on takes a minute to
// tell of a classic queue that its node is down; of a quorum queue without leader it may tell
// nothing at all.
//
// Upstream: a declaration of a classic queue whose node is down takes a minute.
const patience = 90 * time.Second

// broker is asked one thing after the other. It has a channel as long as the broker leaves it open,
// which it does not after a refusal.
type broker struct {
	ctx        context.Context // Channel of topology has none
	connection *amqp091.Connection
	channel    *amqp091.Channel
}

// do asks, and does not wait for ever.
func (b *broker) do(kind, name string, ask func(*amqp091.Channel) error) error {
	answer := make(chan error, 1)
	channel := b.channel
	b.channel = nil // until there is an answer
	opened := make(chan *amqp091.Channel, 1)
	go func() {
		ch := channel
		if ch == nil || ch.IsClosed() {
			var err error
			if ch, err = b.connection.Channel(); err != nil {
				answer <- err
				return
			}
		}
		err := ask(ch)
		opened <- ch
		answer <- err
	}()

	select {
	case err := <-answer:
		if err != nil && b.ctx.Err() != nil {
			return context.Cause(b.ctx)
		}
		if err == nil {
			b.channel = <-opened
		}
		if err != nil && b.connection.IsClosed() {
			return fmt.Errorf("%s %q: the connection was lost: %w", kind, name, err)
		}

		return err
	case <-b.ctx.Done():
		return context.Cause(b.ctx)
	case <-time.After(patience):
		return fmt.Errorf("%s %q: no answer from the broker within %s: is it a queue whose nodes are down?", kind, name,
			patience)
	}
}

// The broker is a topology.Channel.
var _ topology.Channel = (*broker)(nil)

// ExchangeDeclare declares.
func (b *broker) ExchangeDeclare(name, kind string, durable, autoDelete, internal, noWait bool,
	args amqp091.Table) error {
	return b.do(kindExchange, name, func(ch *amqp091.Channel) error {
		return ch.ExchangeDeclare(name, kind, durable, autoDelete, internal, noWait, args)
	})
}

// QueueDeclare declares.
func (b *broker) QueueDeclare(name string, durable, autoDelete, exclusive, noWait bool,
	args amqp091.Table) (amqp091.Queue, error) {
	return amqp091.Queue{Name: name}, b.do(kindQueue, name, func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclare(name, durable, autoDelete, exclusive, noWait, args)
		return err
	})
}

// ExchangeBind binds.
func (b *broker) ExchangeBind(destination, key, source string, noWait bool, args amqp091.Table) error {
	return b.do(kindExchange, destination, func(ch *amqp091.Channel) error {
		return ch.ExchangeBind(destination, key, source, noWait, args)
	})
}

// QueueBind binds.
func (b *broker) QueueBind(name, key, exchange string, noWait bool, args amqp091.Table) error {
	return b.do(kindQueue, name, func(ch *amqp091.Channel) error {
		return ch.QueueBind(name, key, exchange, noWait, args)
	})
}

// hasQueue asks whether a queue is there.
func (b *broker) hasQueue(name string) (bool, error) {
	return there(b.do(kindQueue, name, func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	}))
}

// readyMessages counts what a queue holds now.
func (b *broker) readyMessages(name string) (int, error) {
	count := make(chan int, 1)
	err := b.do(kindQueue, name, func(ch *amqp091.Channel) error {
		queue, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		count <- queue.Messages
		return err
	})
	if err != nil {
		return 0, err // there may be no count, ever
	}

	return <-count, nil
}

// hasExchange asks whether an exchange is there.
func (b *broker) hasExchange(name, kind string) (bool, error) {
	return there(b.do(kindExchange, name, func(ch *amqp091.Channel) error {
		return ch.ExchangeDeclarePassive(name, kind, true, false, false, false, nil)
	}))
}

// there reads the answer to a passive declaration. A queue that is locked is there.
func there(err error) (bool, error) {
	var refused *amqp091.Error
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &refused) && refused.Code == amqp091.NotFound:
		return false, nil
	case errors.As(err, &refused) && refused.Code == amqp091.ResourceLocked:
		return true, nil
	default:
		return false, err
	}
}
