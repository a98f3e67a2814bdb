package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// prober asks a broker over AMQP, and changes nothing there. Each question has a channel of its
// own, as a refusal closes it. After the end of ctx, or of a connection, it answers at once with
// why.
type prober struct {
	ctx        context.Context
	connection *amqp.Connection
	// publisher is a second connection: in an alarm the broker stops reading from connections that
	// publish.
	publisher *amqp.Connection
	blocking  <-chan amqp.Blocking // closed with the publisher
	// blockedBy is why the broker has blocked the publisher; "" if it has not.
	blockedBy string
	// lost are the ends of both connections, with why the broker or the network has closed them.
	lost [2]<-chan *amqp.Error
	gone error // what ended returns once a connection is lost
}

// publisherTimeout is how long the broker may take to answer the connection that publishes.
const publisherTimeout = 5 * time.Second

func newProber(ctx context.Context, connection, publisher *amqp.Connection) *prober {
	return &prober{ctx: ctx, connection: connection, publisher: publisher,
		blocking: publisher.NotifyBlocked(make(chan amqp.Blocking, 8)),
		lost: [2]<-chan *amqp.Error{connection.NotifyClose(make(chan *amqp.Error, 1)),
			publisher.NotifyClose(make(chan *amqp.Error, 1))}}
}

// on asks a question on a channel of its own. After the end of the connections the error says why
// they have ended.
func (p *prober) on(connection *amqp.Connection, question func(*amqp.Channel) error) error {
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	return p.explain(onChannel(connection, question))
}

func onChannel(connection *amqp.Connection, question func(*amqp.Channel) error) error {
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	defer channel.Close()
	return question(channel)
}

// explain puts the reason why there are no more answers in the place of an error that followed from
// it.
func (p *prober) explain(err error) error {
	if err == nil {
		return nil
	}
	return cmp.Or(p.ended(), err)
}

// lostError is the end of a connection that doctor has not closed.
type lostError struct{ cause string }

func (e *lostError) Error() string { return "the connection to the broker was lost: " + e.cause }

// ended is why there are no more answers; nil while there are.
func (p *prober) ended() error {
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	if p.gone != nil {
		return p.gone
	}
	for i, connection := range []*amqp.Connection{p.connection, p.publisher} {
		if !connection.IsClosed() {
			continue
		}
		cause := "the broker or the network has closed it"
		select {
		case reason, open := <-p.lost[i]:
			if open {
				cause = reason.Reason
			}
		case <-p.ctx.Done():
			return context.Cause(p.ctx)
		}
		p.gone = &lostError{cause}
		return p.gone
	}
	return nil
}

// code is why the broker has refused; 0 for everything else.
func code(err error) int {
	var refusal *amqp.Error
	if errors.As(err, &refusal) {
		return refusal.Code
	}
	return 0
}

// notPermitted is why a refused question has no answer. It names no object, so all refused objects
// have one reason.
const notPermitted = "the user lacks permissions on them"

// exists reads the answer to a passive declaration.
//
// Upstream: a passive declaration takes a permission; rabbitmq/rabbitmq-server#16085,
// rabbitmq/rabbitmq-server#16272; RabbitMQ 4.2.6 and later; TestPermissions_OwnBroker; remove when
// it takes none.
func exists(err error) Seen[bool] {
	switch {
	case err == nil, code(err) == amqp.ResourceLocked: // exclusive to somebody, so it is there
		return seen(true)
	case code(err) == amqp.NotFound:
		return seen(false)
	case code(err) == amqp.AccessRefused: // RabbitMQ 4.3 and later
		return unseen[bool](notPermitted)
	default:
		return unseen[bool](err.Error())
	}
}

// conflict reads the answer to the declaration of an object that is there, which changes nothing of
// it.
func conflict(kind, name string, err error) Seen[*topology.ConflictError] {
	var found *topology.ConflictError
	var refused *topology.AccessError
	switch err = topology.Explain("", kind, name, err); {
	case err == nil:
		return seen[*topology.ConflictError](nil)
	case errors.As(err, &found):
		return seen(found)
	case errors.As(err, &refused):
		return unseen[*topology.ConflictError](notPermitted)
	default:
		return unseen[*topology.ConflictError](err.Error())
	}
}

// state is whether a queue is there, with the numbers of its ready messages and of its consumers.
func (p *prober) state(queue string) (there Seen[bool], ready, consumers int) {
	there = exists(p.on(p.connection, func(ch *amqp.Channel) error {
		state, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		ready, consumers = state.Messages, state.Consumers
		return err
	}))
	return there, ready, consumers
}

func (p *prober) queue(o object) Queue {
	var q Queue
	q.Exists, q.Ready, q.Consumers = p.state(o.Name)
	if o.Planned == nil {
		return q
	}
	if !q.Exists.Known || !q.Exists.Value {
		q.Conflict = unseen[*topology.ConflictError](orElse(q.Exists.Why, "there is no such queue"))
		return q
	}
	q.Conflict = conflict(rabbitmq.KindQueue, o.Name, p.on(p.connection, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(o.Name, true, false, false, false, o.Planned.Arguments)
		return err
	}))
	if c := q.Conflict.Value; c != nil && c.Wanted == "" && o.Planned.Arguments[c.Argument] != nil {
		// the broker cuts its text
		c.Wanted = fmt.Sprint(o.Planned.Arguments[c.Argument])
	}
	return q
}

func (p *prober) exchange(name string, planned *topology.Exchange) Exchange {
	var x Exchange
	x.Exists = exists(p.on(p.connection, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, amqp.ExchangeHeaders, true, false, false, false, nil)
	}))
	if planned == nil {
		return x
	}
	if !x.Exists.Known || !x.Exists.Value {
		x.Conflict = unseen[*topology.ConflictError](orElse(x.Exists.Why, "there is no such exchange"))
		return x
	}
	x.Type = planned.Type
	x.Conflict = conflict(rabbitmq.KindExchange, name, p.on(p.connection, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(name, x.Type, true, false, false, false, planned.Arguments)
	}))
	return x
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// refused asks for each permission by something that the broker checks first and then refuses, or
// that does nothing: no queue or exchange is made, bound or read, and no message is routed.
func (p *prober) refused(wanted []Permission) Seen[[]Permission] {
	all := seen[[]Permission](nil)
	for _, need := range wanted {
		err := p.ask(need, wanted)
		switch {
		case code(err) == amqp.AccessRefused && about(need, err):
			all.Value = append(all.Value, need)
		case code(err) == 0 && err != nil:
			all.Known, all.Why = false, fmt.Sprintf("asking for %s on %s: %v", need.Operation, need.Name, err)
			if ended := p.ended(); ended != nil {
				all.Why = ended.Error()
				return all
			}
		}
	}
	return all
}

// about tells whether a refusal is for what was asked, and not for the other half of a question
// about two objects.
func about(need Permission, err error) bool {
	if need.Name == defaultExchange {
		return true // the broker calls it by other names
	}
	var refusal *topology.AccessError
	return errors.As(topology.Explain("", need.Kind, need.Name, err), &refusal) && refusal.Kind == need.Kind &&
		refusal.Name == need.Name
}

func (p *prober) ask(need Permission, all []Permission) error {
	// What no broker takes: it is refused with 406, or with 403 before.
	unacceptable := amqp.Table{amqp.QueueMessageTTLArg: "no number"}
	nobody := "amqpretry-doctor-" + rand.Text()
	switch need.Operation + " " + need.Kind {
	case configure + " " + rabbitmq.KindQueue:
		return p.on(p.connection, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(need.Name, true, false, false, false, unacceptable)
			return err
		})
	case configure + " " + rabbitmq.KindExchange:
		return p.on(p.connection, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare(need.Name, amqp.ExchangeHeaders, true, false, false, false,
				amqp.Table{"alternate-exchange": int64(0)})
		})
	case read + " " + rabbitmq.KindQueue:
		return p.on(p.connection, func(ch *amqp.Channel) error {
			_, err := ch.Consume(need.Name, nobody, false, false, false, false, amqp.Table{"x-priority": "no number"})
			return err
		})
	case write + " " + rabbitmq.KindExchange:
		return p.publish(need.Name, nobody)
	case write + " " + rabbitmq.KindQueue: // to unbind what is not bound
		return p.unbind(need.Name, other(all, read, rabbitmq.KindExchange), nobody)
	default: // read on an exchange
		return p.unbind(other(all, write, rabbitmq.KindQueue), need.Name, nobody)
	}
}

func (p *prober) unbind(queue, exchange, key string) error {
	return p.on(p.connection, func(ch *amqp.Channel) error {
		return ch.QueueUnbind(queue, key, exchange, amqp.Table{"x-match": "all", key: key})
	})
}

// other is the name of an object with which a question about two can be asked.
func other(all []Permission, operation, kind string) string {
	i := slices.IndexFunc(all, func(p Permission) bool { return p.Operation == operation && p.Kind == kind })
	if i < 0 {
		return ""
	}
	return all[i].Name
}

var errBlocked = errors.New("the broker has blocked the connection")

// publish publishes in a transaction that is rolled back: the broker looks at the permission, and
// nothing is routed.
func (p *prober) publish(exchange, key string) error {
	if exchange == defaultExchange {
		exchange = ""
	}
	ctx, cancel := context.WithTimeoutCause(p.ctx, publisherTimeout, errors.New("the broker does not answer"))
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		answer <- onChannel(p.publisher, func(ch *amqp.Channel) error {
			if err := ch.Tx(); err != nil {
				return err
			}
			closed := ch.NotifyClose(make(chan *amqp.Error, 1))
			if err := ch.PublishWithContext(ctx, exchange, key, false, false, amqp.Publishing{}); err != nil {
				return err
			}
			if err := ch.TxRollback(); err != nil {
				if reason := <-closed; reason != nil {
					// the broker's words, also if the channel was closed before the call
					return reason
				}
				return err
			}
			return nil
		})
	}()
	blocking := p.blocking
	for {
		select {
		case err := <-answer:
			return p.explain(err)
		case b, open := <-blocking:
			if !open { // with the connection, as the answer is about to say
				blocking = nil
				continue
			}
			if p.note(b); b.Active {
				return errBlocked
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// note keeps whether the broker has blocked the publisher.
func (p *prober) note(b amqp.Blocking) {
	p.blockedBy = ""
	if b.Active {
		p.blockedBy = b.Reason
	}
}

// blocked publishes to nobody, as a broker in an alarm tells only those who publish.
func (p *prober) blocked() Seen[string] {
	err := p.publish(defaultExchange, "amqpretry-doctor-"+rand.Text())
	for range len(p.blocking) { // it may have told after the answer
		p.note(<-p.blocking)
	}
	switch {
	case p.blockedBy != "":
		return seen(p.blockedBy)
	case err == nil, code(err) == amqp.AccessRefused: // the broker reads what is published
		return seen("")
	case p.ended() != nil:
		return unseen[string](p.ended().Error())
	default:
		return unseen[string]("publishing to nobody: " + err.Error())
	}
}
