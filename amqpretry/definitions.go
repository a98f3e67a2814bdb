package amqpretry

import (
	"errors"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// Definitions returns everything that a service with these topics declares, as a file for
// `rabbitmqctl import_definitions`: for an operator who provisions it, and a service with
// AssumeTopology that may configure nothing. It does not connect.
//
// Beside the plans it has what watermill-amqp's own TopologyBuilder would declare by the config:
// the main queues with their arguments and protection, the exchanges of the topics, and the
// bindings. A custom TopologyBuilder cannot be asked what it would declare, so what that does
// otherwise must be provisioned by other means. The virtual host, which must exist, is that of the
// connection.
//
// A number in config.QueueBind.Arguments has 64 bits when it is imported and as many as its Go type
// when it is declared; who declares later binds a second time then, which routes alike.
//
// The names of the queues are generated here as in Subscribe, so a generator must give the same
// name each time. Everything that is wrong is reported at once.
func (r *Retrier) Definitions(topics ...string) ([]byte, error) { return r.definitions("", topics) }

func (r *Retrier) definitions(group string, topics []string) ([]byte, error) {
	if len(topics) == 0 {
		return nil, &config.FieldError{Path: "topics", Problem: "missing", Wanted: "those to which the service " +
			"subscribes"}
	}
	vhost, err := vhostOf(r.config.Connection)
	errs := []error{err}

	registry := newRegistry() // one of its own: nothing is subscribed to
	var queues []topology.MainQueue
	for _, topic := range topics {
		main, err := r.mainOf(group, topic)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		policy := r.policy(main)
		if !policy.Strategy.ByBroker() { // else topology.Definitions tells
			errs = append(errs, r.checkMainQueue(main, policy, topology.Plan{}))
		}

		queue, err := registry.add(main, policy, r.options.Names)
		if err != nil {
			errs = append(errs, explain(main, err))
			continue
		}
		queues = append(queues, r.mainQueue(main, queue.Plan, policy))
		r.warnOfLimit(queue, "")
	}

	file, err := topology.Definitions(vhost, queues...)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}

	return file, nil
}

// mainQueue is what amqp.DefaultTopologyBuilder declares.
func (r *Retrier) mainQueue(main mainQueue, plan topology.Plan, policy config.Policy) topology.MainQueue {
	q := topology.MainQueue{Plan: plan, Arguments: r.mainArguments(main.Queue, policy, plan)}
	if main.Exchange == "" {
		return q
	}

	exchange := r.config.Exchange.Declared
	exchange.Name = main.Exchange
	q.Exchanges = []topology.Exchange{exchange}
	q.Bindings = []topology.Binding{{
		Exchange: main.Exchange, Queue: main.Queue, Key: r.config.QueueBind.GenerateRoutingKey(main),
		Arguments: r.config.QueueBind.Arguments,
	}}

	return q
}
