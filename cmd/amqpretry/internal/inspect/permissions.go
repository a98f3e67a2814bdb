package inspect

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// The operations that RabbitMQ has permissions for.
const (
	Configure = "configure"
	Write     = "write"
	Read      = "read"
)

// defaultExchange is the name of the default exchange in permissions.
const defaultExchange = "amq.default"

// Permission is one that a consumer needs.
type Permission struct {
	Operation string
	// Kind and Name of the object.
	Kind, Name string
	// For is what it is needed for. Always is true if a service that declares nothing
	// (AssumeTopology) needs it as well.
	For    string
	Always bool
}

// Same tells whether both are the same permission, whatever they are needed for.
func (p Permission) Same(q Permission) bool {
	return p.Operation == q.Operation && p.Kind == q.Kind && p.Name == q.Name
}

// Needs lists what the consumers of these topics must be allowed, as docs/how-to/permissions.md
// says; each once.
func Needs(topics []Topic) []Permission {
	var all []Permission
	add := func(needed []Permission) {
		for _, p := range needed {
			i := slices.IndexFunc(all, p.Same)
			switch {
			case p.Name == "":
			case i < 0:
				all = append(all, p)
			case p.Always && !all[i].Always:
				all[i] = p
			}
		}
	}
	ladders := map[string]bool{}
	for _, t := range topics {
		add(toConsume(t))
		if l := t.Plan.Ladder; l != nil && !ladders[l.Name()] {
			ladders[l.Name()] = true
			add(toEnter(l))
			add(toDeclare(l.Shared()))
		}
		add(toDeclare(t.Plan))
	}
	return all
}

// toConsume is what it takes to consume a main queue, and to declare it. An empty name is that of
// nothing.
func toConsume(t Topic) []Permission {
	const queue, exchange = rabbitmq.KindQueue, rabbitmq.KindExchange
	plan, deadLetters, target := t.Plan, "", ""
	if x, _ := plan.End(); x == "" && plan.DeadLetterQueue != "" {
		deadLetters = defaultExchange
	}
	if x, set := plan.MainArguments["x-dead-letter-exchange"].(string); set &&
		t.Policy.WithDefaults().Protect != config.ProtectionPolicy {
		target = cmp.Or(x, defaultExchange)
	}
	return []Permission{
		{Read, queue, plan.Queue, "consuming from it", true},
		{Write, exchange, plan.RetryExchange, "publishing the copies of failed messages", true},
		{Write, exchange, deadLetters, "publishing dead letters", true},
		{Configure, queue, plan.Queue, "declaring it", false},
		{Write, exchange, target, "declaring queues that dead-letter to it", false},
	}
}

// toEnter is what it takes to publish what is to wait in a ladder: to the exchanges from which
// delay queues are reached.
func toEnter(ladder *topology.Ladder) (all []Permission) {
	shared := ladder.Shared()
	for _, b := range shared.Bindings {
		if slices.ContainsFunc(shared.Queues, func(q topology.Queue) bool { return q.Name == b.Queue && q.Delay > 0 }) {
			all = append(all, Permission{Write, rabbitmq.KindExchange, b.Exchange,
				"publishing the copies of failed messages",
				true})
		}
	}
	return all
}

// toDeclare is what it takes to declare a plan.
func toDeclare(plan topology.Plan) (all []Permission) {
	const queue, exchange = rabbitmq.KindQueue, rabbitmq.KindExchange
	for _, x := range plan.Exchanges {
		all = append(all, Permission{Configure, exchange, x.Name, "declaring it", false})
		if alternate, has := x.Arguments["alternate-exchange"].(string); has {
			all = append(all, Permission{Read, exchange, x.Name, "declaring it, as it has an alternate exchange",
				false},
				Permission{Write, exchange, alternate, "declaring exchanges whose alternate exchange it is", false})
		}
	}
	for _, q := range plan.Queues {
		all = append(all, Permission{Configure, queue, q.Name, "declaring it", false})
		if x, deadLetters := q.Arguments["x-dead-letter-exchange"].(string); deadLetters {
			all = append(all, Permission{Read, queue, q.Name, "declaring it, as it dead-letters", false},
				Permission{Write, exchange, cmp.Or(x, defaultExchange), "declaring queues that dead-letter to it",
					false})
		}
	}
	for _, b := range plan.Bindings {
		all = append(all, Permission{Write, queue, b.Queue, "binding it", false},
			Permission{Write, exchange, b.ToExchange, "binding it", false},
			Permission{Read, exchange, b.Exchange, "binding queues to it", false})
	}
	return all
}

// prober asks also what takes a second connection: in an alarm the broker stops reading from
// connections that publish.
type prober struct {
	*Broker
	publisher *Broker
	blocking  <-chan amqp.Blocking // closed with the publisher
	// blockedBy is why the broker has blocked the publisher; "" if it has not.
	blockedBy string
}

// PublisherTimeout is how long the broker may take to answer the connection that publishes.
const PublisherTimeout = 5 * time.Second

func newProber(broker, publisher *Broker) *prober {
	return &prober{Broker: broker, publisher: publisher,
		blocking: publisher.connection.NotifyBlocked(make(chan amqp.Blocking, 8))}
}

// Ended is why there are no more answers from one of both; nil while there are.
func (p *prober) Ended() error { return cmp.Or(p.Broker.Ended(), p.publisher.Ended()) }

// refused asks for each permission by something that the broker checks first and then refuses, or
// that does nothing: no queue or exchange is made, bound or read, and no message is routed.
func (p *prober) refused(wanted []Permission) Seen[[]Permission] {
	all := Known[[]Permission](nil)
	for _, need := range wanted {
		err := p.probe(need, wanted)
		switch {
		case code(err) == amqp.AccessRefused && about(need, err):
			all.Value = append(all.Value, need)
		case code(err) == 0 && err != nil:
			all.Known, all.Why = false, fmt.Sprintf("asking for %s on %s: %v", need.Operation, need.Name, err)
			if ended := p.Ended(); ended != nil {
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

func (p *prober) probe(need Permission, all []Permission) error {
	nobody := "amqpretry-doctor-" + rand.Text()
	// other is an object with which a question about two can be asked.
	other := func(operation, kind string) string {
		i := slices.IndexFunc(all, func(p Permission) bool { return p.Operation == operation && p.Kind == kind })
		if i < 0 {
			return ""
		}
		return all[i].Name
	}
	unbind := func(ch *amqp.Channel, queue, exchange string) error { // what is not bound
		return ch.QueueUnbind(queue, nobody, exchange, amqp.Table{"x-match": "all", nobody: nobody})
	}
	const queue, exchange = " " + rabbitmq.KindQueue, " " + rabbitmq.KindExchange
	operation := need.Operation + " " + need.Kind
	if operation == Write+exchange {
		return p.publish(need.Name, nobody)
	}
	questions := map[string]func(*amqp.Channel) error{
		// What no broker takes: it is refused with 406, or with 403 before.
		Configure + queue: func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(need.Name, true, false, false, false,
				amqp.Table{amqp.QueueMessageTTLArg: "no number"})
			return err
		},
		Configure + exchange: func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare(need.Name, amqp.ExchangeHeaders, true, false, false, false,
				amqp.Table{"alternate-exchange": int64(0)})
		},
		Read + queue: func(ch *amqp.Channel) error {
			_, err := ch.Consume(need.Name, nobody, false, false, false, false, amqp.Table{"x-priority": "no number"})
			return err
		},
		Write + queue: func(ch *amqp.Channel) error {
			return unbind(ch, need.Name, other(Read, rabbitmq.KindExchange))
		},
		Read + exchange: func(ch *amqp.Channel) error {
			return unbind(ch, other(Write, rabbitmq.KindQueue), need.Name)
		},
	}
	return p.ask(need.Kind, need.Name, questions[operation])
}

var errBlocked = errors.New("the broker has blocked the connection")

// publish publishes in a transaction that is rolled back: the broker looks at the permission, and
// nothing is routed.
func (p *prober) publish(exchange, key string) error {
	if exchange == defaultExchange {
		exchange = ""
	}
	ctx, cancel := context.WithTimeoutCause(p.ctx, PublisherTimeout, errors.New("the broker does not answer"))
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- p.rolledBack(ctx, exchange, key) }()
	blocking := p.blocking
	for {
		select {
		case err := <-answer:
			if err == nil {
				return nil
			}
			return cmp.Or(p.Ended(), err)
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

func (p *prober) rolledBack(ctx context.Context, exchange, key string) error {
	ch, err := p.publisher.connection.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	if err := ch.Tx(); err != nil {
		return err
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := ch.PublishWithContext(ctx, exchange, key, false, false, amqp.Publishing{}); err != nil {
		return err
	}
	err = ch.TxRollback()
	if err == nil {
		return nil
	}
	if reason := <-closed; reason != nil {
		return reason // the broker's words, also if the channel was closed before the call
	}
	return err
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
		return Known(p.blockedBy)
	case err == nil, code(err) == amqp.AccessRefused: // the broker reads what is published
		return Known("")
	case p.Ended() != nil:
		return failed[string](p.Ended())
	default:
		return Unseen[string]("publishing to nobody: " + err.Error())
	}
}
