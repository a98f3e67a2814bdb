package plug

import (
	"errors"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
)

// Definitions is everything that a service with these topics declares, as a file, or everything that is wrong with it. The broker is not
// touched.
func (p *Plug) Definitions(topics ...string) ([]byte, error) {
	if len(topics) == 0 {
		return nil, &config.FieldError{Path: "topics", Problem: "missing", Wanted: "those to which the service subscribes"}
	}
	vhost, err := vhostOf(p.config.Connection)
	errs := []error{err}

	registry := newRegistry() // one of its own: nothing is subscribed to
	var queues []topology.MainQueue
	for _, topic := range topics {
		main, policy := p.main(topic), p.options.Policies.For(topic)
		errs = append(errs, p.checkProtection(topic, main.Queue, policy))

		source, err := registry.add(main, policy, p.options.Names)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		queues = append(queues, p.mainQueue(main, source.Plan, policy))
		p.warnOfDrops(source, "")
	}

	file, err := topology.Definitions(vhost, queues...)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}

	return file, nil
}

// mainQueue is what amqp.DefaultTopologyBuilder declares.
func (p *Plug) mainQueue(main Main, plan topology.Plan, policy config.Policy) topology.MainQueue {
	q := topology.MainQueue{Plan: plan, Arguments: p.mainArguments(main.Queue, policy)}
	if main.Exchange == "" {
		return q
	}

	exchange := p.config.Exchange.Declared
	exchange.Name = main.Exchange
	q.Exchanges = []topology.MainExchange{exchange}
	q.Bindings = []topology.Binding{{
		Exchange: main.Exchange, Queue: main.Queue, Key: p.config.QueueBind.GenerateRoutingKey(main),
		Arguments: p.config.QueueBind.Arguments,
	}}

	return q
}
