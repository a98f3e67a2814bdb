package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// Broker is asked one question after the other over AMQP. It has a channel as long as the broker
// leaves it open, which it does not after a refusal.
type Broker struct {
	ctx        context.Context // a topology.Channel has none
	end        context.CancelCauseFunc
	patience   time.Duration // for one answer
	connection *amqp.Connection
	channel    *amqp.Channel
	lost       <-chan *amqp.Error
	gone       error // what ended returns once the connection is lost
}

// Connect opens a connection that ends with ctx, and when the broker gives no answer within
// patience. 0 is no limit.
func Connect(ctx context.Context, dial func(context.Context) (*amqp.Connection, error), patience time.Duration,
) (*Broker, error) {
	ctx, end := context.WithCancelCause(ctx)
	connection, err := dial(ctx)
	if err != nil {
		end(nil)
		return nil, err
	}
	return &Broker{ctx: ctx, end: end, patience: patience, connection: connection,
		lost: connection.NotifyClose(make(chan *amqp.Error, 1))}, nil
}

// closeTime is how long a broker may take to say goodbye.
const closeTime = 5 * time.Second

// Close closes the connection.
func (b *Broker) Close() {
	_ = b.connection.CloseDeadline(time.Now().Add(closeTime))
	b.end(nil) // which closes the socket in any case
}

// Version is the one that the broker says it has.
func (b *Broker) Version() string {
	version, _ := b.connection.Properties["version"].(string)
	return version
}

// ask asks about an object. The error of a connection that has ended says why.
func (b *Broker) ask(kind, name string, question func(*amqp.Channel) error) error {
	if ended := b.Ended(); ended != nil {
		return ended
	}
	if b.patience > 0 {
		defer time.AfterFunc(b.patience, func() {
			b.end(fmt.Errorf("%s %q: no answer from the broker within %s: is it a queue whose nodes are down?", kind,
				name,
				b.patience))
		}).Stop()
	}
	err := b.onChannel(question)
	if err == nil {
		return nil
	}
	return cmp.Or(b.Ended(), err)
}

func (b *Broker) onChannel(question func(*amqp.Channel) error) (err error) {
	if b.channel == nil || b.channel.IsClosed() {
		if b.channel, err = b.connection.Channel(); err != nil {
			return err
		}
	}
	if err = question(b.channel); err != nil {
		_ = b.channel.Close() // most often the broker has closed it
		b.channel = nil
	}
	return err
}

// LostError is the end of a connection that the command has not closed.
type LostError struct{ Cause string }

func (e *LostError) Error() string { return "the connection to the broker was lost: " + e.Cause }

// Ended is why there are no more answers; nil while there are.
func (b *Broker) Ended() error {
	if b.ctx.Err() != nil {
		return context.Cause(b.ctx)
	}
	if b.gone != nil || !b.connection.IsClosed() {
		return b.gone
	}
	cause := "the broker or the network has closed it"
	select {
	case reason, open := <-b.lost:
		if open {
			cause = reason.Reason
		}
	case <-b.ctx.Done():
		return context.Cause(b.ctx)
	}
	b.gone = &LostError{cause}
	return b.gone
}

// Declare declares a plan, one object after the other. An object that is there as planned stays as
// it is, so this compares it.
func (b *Broker) Declare(plan topology.Plan) error {
	declare := func(kind, name string, part topology.Plan) error {
		return topology.Explain("", kind, name, b.ask(kind, name, func(ch *amqp.Channel) error {
			return part.DeclareOwn(ch)
		}))
	}
	for _, x := range plan.Exchanges {
		if err := declare(rabbitmq.KindExchange, x.Name, topology.Plan{Exchanges: []topology.Exchange{x}}); err != nil {
			return err
		}
	}
	for _, q := range plan.Queues {
		if err := declare(rabbitmq.KindQueue, q.Name, topology.Plan{Queues: []topology.Queue{q}}); err != nil {
			return err
		}
	}
	for _, x := range plan.Bindings {
		kind := rabbitmq.KindQueue
		if x.ToExchange != "" {
			kind = rabbitmq.KindExchange
		}
		err := declare(kind, x.Queue+x.ToExchange, topology.Plan{Bindings: []topology.Binding{x}})
		if err != nil {
			return err
		}
	}
	return nil
}

// Queue tells whether a queue is there, with the numbers of its ready messages and of its
// consumers.
func (b *Broker) Queue(name string) (there Seen[bool], ready, consumers int) {
	there = exists(rabbitmq.KindQueue, name, b.ask(rabbitmq.KindQueue, name, func(ch *amqp.Channel) error {
		state, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		ready, consumers = state.Messages, state.Consumers
		return err
	}))
	return there, ready, consumers
}

// Exchange tells whether an exchange is there.
func (b *Broker) Exchange(name string) Seen[bool] {
	return exists(rabbitmq.KindExchange, name, b.ask(rabbitmq.KindExchange, name, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, amqp.ExchangeHeaders, true, false, false, false, nil)
	}))
}

// notPermitted is why a refused question has no answer. It names no object, so all refused objects
// have one reason.
const notPermitted = "the user lacks permissions on them"

// exists reads the answer to a passive declaration.
//
// Upstream: a passive declaration takes a permission; rabbitmq/rabbitmq-server#16085,
// rabbitmq/rabbitmq-server#16272; RabbitMQ 4.2.6 and later; TestPermissions_OwnBroker; remove when
// it takes none.
func exists(kind, name string, err error) Seen[bool] {
	switch code(err) {
	case amqp.ResourceLocked: // exclusive to somebody, so it is there
		return Known(true)
	case amqp.NotFound:
		return Known(false)
	case amqp.AccessRefused: // RabbitMQ 4.3 and later
		return Seen[bool]{Why: notPermitted, Err: topology.Explain(rabbitmq.UseLook, kind, name, err)}
	}
	if err != nil {
		return failed[bool](err)
	}
	return Known(true)
}

// code is why the broker has refused; 0 for everything else.
func code(err error) int {
	var refusal *amqp.Error
	if errors.As(err, &refusal) {
		return refusal.Code
	}
	return 0
}

// compare declares an object that is there, which changes nothing of it.
func (b *Broker) compare(only topology.Plan) Seen[*topology.ConflictError] {
	err := b.Declare(only)
	var conflict *topology.ConflictError
	var refused *topology.AccessError
	switch {
	case err == nil:
		return Known[*topology.ConflictError](nil)
	case errors.As(err, &conflict):
		return Seen[*topology.ConflictError]{Value: conflict, Known: true, Err: err}
	case errors.As(err, &refused):
		return Seen[*topology.ConflictError]{Why: notPermitted, Err: err}
	}
	if ended := b.Ended(); ended != nil {
		return failed[*topology.ConflictError](ended)
	}
	return failed[*topology.ConflictError](err)
}
