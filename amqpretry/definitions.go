package amqpretry

import (
	"errors"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
)

// Definitions is everything that a service with these topics declares, as a file for `rabbitmqctl import_definitions`: for an
// operator who provisions it, and a service with TopologyAssume that may configure nothing. The broker is not touched.
//
// Beside the plans it has what watermill-amqp's own TopologyBuilder would declare by the config: the main queues with their
// arguments and protection, the exchanges of the topics, and the bindings. A custom TopologyBuilder cannot be asked what it
// would declare, so what that does otherwise must be provisioned by other means. The virtual host, which must exist, is that
// of the connection.
//
// A number in config.QueueBind.Arguments has 64 bits when it is imported and as many as its Go type when it is declared; who
// declares later binds a second time then, which routes alike.
//
// The names of the queues are generated here as in Subscribe, so a generator must give the same name each time. Everything
// that is wrong is reported at once.
func (p *Plug) Definitions(topics ...string) ([]byte, error) {
	if len(topics) == 0 {
		return nil, &config.FieldError{Path: "topics", Problem: "missing", Wanted: "those to which the service subscribes"}
	}
	vhost, err := vhostOf(p.config.Connection)
	errs := []error{err}

	registry := newRegistry() // one of its own: nothing is subscribed to
	var queues []topology.MainQueue
	for _, topic := range topics {
		queue, exchange := p.config.Queue.GenerateName(topic), p.config.Exchange.GenerateName(topic)
		policy := p.options.Policies.For(topic)
		errs = append(errs, p.checkProtection(topic, queue, policy))

		source, err := registry.add(topic, queue, exchange, policy, p.options.Names)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		queues = append(queues, p.mainQueue(source.Plan, policy, exchange))
		p.warnOfDrops(source, "")
	}

	file, err := topology.Definitions(vhost, queues...)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}

	return file, nil
}

// mainQueue is what amqp.DefaultTopologyBuilder declares.
func (p *Plug) mainQueue(plan topology.Plan, policy config.Policy, exchange string) topology.MainQueue {
	q := topology.MainQueue{Plan: plan, Arguments: p.mainArguments(plan.Queue, policy)}
	if exchange == "" {
		return q
	}

	x := p.config.Exchange
	q.Exchanges = []topology.MainExchange{{
		Name: exchange, Type: x.Type, Durable: x.Durable, AutoDelete: x.AutoDeleted, Internal: x.Internal, Arguments: x.Arguments,
	}}
	q.Bindings = []topology.Binding{{
		Exchange: exchange, Queue: plan.Queue, Key: p.config.QueueBind.GenerateRoutingKey(plan.Queue),
		Arguments: p.config.QueueBind.Arguments,
	}}

	return q
}
