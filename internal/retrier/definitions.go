package retrier

import (
	"errors"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// Definitions returns everything that a service with these topics declares, as a file, or all problems in one error. It
// does not connect.
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
		errs = append(errs, r.checkProtection(topic, main.Queue, policy))

		queue, err := registry.add(main, policy, r.options.Names)
		if err != nil {
			errs = append(errs, main.explain(err))
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
func (r *Retrier) mainQueue(main Main, plan topology.Plan, policy config.Policy) topology.MainQueue {
	q := topology.MainQueue{Plan: plan, Arguments: r.mainArguments(main.Queue, policy, plan)}
	if main.Exchange == "" {
		return q
	}

	exchange := r.config.Exchange.Declared
	exchange.Name = main.Exchange
	q.Exchanges = []topology.MainExchange{exchange}
	q.Bindings = []topology.Binding{{
		Exchange: main.Exchange, Queue: main.Queue, Key: r.config.QueueBind.GenerateRoutingKey(main),
		Arguments: r.config.QueueBind.Arguments,
	}}

	return q
}
