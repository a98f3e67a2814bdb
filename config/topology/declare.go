package topology

import (
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// Channel is what [Plan.Declare] needs of an *amqp091.Channel.
type Channel interface {
	// ExchangeDeclare, ExchangeBind, QueueDeclare and QueueBind are those of *amqp091.Channel.
	ExchangeDeclare(name, kind string, durable, autoDelete, internal, noWait bool, args amqp.Table) error
	ExchangeBind(destination, key, source string, noWait bool, args amqp.Table) error
	QueueDeclare(name string, durable, autoDelete, exclusive, noWait bool, args amqp.Table) (amqp.Queue, error)
	QueueBind(name, key, exchange string, noWait bool, args amqp.Table) error
}

// Declare puts the plan on the broker. It is idempotent: what is there already stays as it is, with
// its messages. The main queue should be declared before, since what comes back from a retry queue
// goes there.
//
// The first error ends it, as the broker then closes the channel: a *[ConflictError],
// *[AccessError] or *[DeclareError].
func (p Plan) Declare(ch Channel) error {
	if p.Ladder != nil {
		if err := p.Ladder.Shared().Declare(ch); err != nil {
			return err
		}
	}
	return p.DeclareOwn(ch)
}

// DeclareOwn is Declare without what a [Ladder] shares, which must be there.
func (p Plan) DeclareOwn(ch Channel) error {
	for _, x := range p.Exchanges {
		err := ch.ExchangeDeclare(x.Name, x.Type, x.Durable, x.AutoDelete, x.Internal, false, x.Arguments)
		if err != nil {
			return Explain("", rabbitmq.KindExchange, x.Name, err)
		}
	}
	for _, q := range p.Queues {
		if _, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Arguments); err != nil {
			err = Explain("", rabbitmq.KindQueue, q.Name, err)
			// The broker cuts its text at 255 bytes, but what was wanted is known here.
			if conflict := (*ConflictError)(nil); errors.As(err, &conflict) && conflict.Wanted == "" {
				if value, sent := q.Arguments[conflict.Argument]; sent {
					conflict.Wanted = fmt.Sprint(value)
				}
			}
			return err
		}
	}
	for _, b := range p.Bindings {
		if b.ToExchange != "" {
			if err := ch.ExchangeBind(b.ToExchange, b.Key, b.Exchange, false, b.Arguments); err != nil {
				return Explain("", rabbitmq.KindExchange, b.ToExchange, err)
			}
			continue
		}
		if err := ch.QueueBind(b.Queue, b.Key, b.Exchange, false, b.Arguments); err != nil {
			return Explain("", rabbitmq.KindQueue, b.Queue, err)
		}
	}
	return nil
}
