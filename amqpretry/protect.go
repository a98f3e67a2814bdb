package amqpretry

import (
	"errors"
	"fmt"
	"maps"
	"strconv"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/amqpconfig"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/consumer"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// ProtectPolicy returns the broker policy that keeps an existing quorum main queue from losing
// messages. Give its String to an operator. Once it is set, use config.ProtectionPolicy.
func (r *Retrier) ProtectPolicy(topic string) (topology.BrokerPolicy, error) {
	return r.protectPolicy(r.config.Queue.GenerateName(topic))
}

func (r *Retrier) protectPolicy(queue string) (topology.BrokerPolicy, error) {
	vhost, err := vhostOf(r.config.Connection)
	if err != nil {
		return topology.BrokerPolicy{}, err
	}

	return topology.ProtectPolicy(vhost, queue, r.options.Names.DeadLetterQueue(queue)), nil
}

// vhostOf is the virtual host that a connection would use.
func vhostOf(c amqpconfig.Connection) (string, error) {
	if c.AmqpConfig != nil && c.AmqpConfig.Vhost != "" {
		return c.AmqpConfig.Vhost, nil
	}

	uri, err := connection.ParseURI(c.AmqpURI)
	if err != nil {
		return "", &config.FieldError{Path: "Config.Connection.AmqpURI", Problem: err.Error()}
	}

	return uri.Vhost, nil
}

// mainArguments are those that a main queue is declared with.
func (r *Retrier) mainArguments(queue string, policy config.Policy, plan topology.Plan) amqp091.Table {
	if policy.Strategy.ByBroker() && policy.Protect == config.ProtectionArguments {
		return plan.WithMainArguments(r.config.Queue.Arguments)
	}
	if policy.Protect != config.ProtectionArguments {
		return r.config.Queue.Arguments
	}

	protected := amqp091.Table{}
	maps.Copy(protected, r.config.Queue.Arguments)
	maps.Copy(protected, topology.ProtectArguments(r.options.Names.DeadLetterQueue(queue)))

	return protected
}

func spelled(v any) string {
	if s, ok := v.(string); ok {
		return strconv.Quote(s)
	}

	return fmt.Sprint(v)
}

// explainMain turns what declaring a main queue gave into a typed error, with the ways out that its
// protection leaves.
func (r *Retrier) explainMain(queue *consumer.Queue, err error) error {
	err = topology.Explain("", rabbitmq.KindQueue, queue.Name, err)

	var conflict *topology.ConflictError
	if !errors.As(err, &conflict) || conflict.Kind != rabbitmq.KindQueue || conflict.Name != queue.Name {
		return err
	}

	if _, needed := queue.Plan.MainArguments[conflict.Argument]; needed || queue.Plan.MainArguments != nil &&
		conflict.Argument == "" {
		return r.explainStrategy(queue, conflict)
	}
	protection := topology.ProtectArguments(r.options.Names.DeadLetterQueue(queue.Name))
	value, ofProtection := protection[conflict.Argument]
	switch {
	case queue.Policy.Protect == config.ProtectionArguments && (ofProtection || conflict.Argument == ""):
		policy, invalid := r.protectPolicy(queue.Name)
		if invalid != nil {
			return err // impossible: there is a connection
		}

		return &topology.ProtectionError{Queue: queue.Name, Policy: policy, Err: conflict}
	case queue.Policy.Protect != config.ProtectionArguments && ofProtection &&
		(conflict.Found == fmt.Sprint(value) || conflict.Found == spelled(value)):
		return fmt.Errorf("%w; if it was declared under config.ProtectionArguments, that has to stay", err)
	default:
		return err
	}
}

// aboutLimits is where the warnings of limits are explained, with what to do about them.
const aboutLimits = "https://github.com/amqpretry/watermill-retry/blob/main/docs/how-to/protect-a-queue.md#the-warning"

// warnOfLimit tells once for each main queue, as long as it is used, that the broker may lose its
// messages, or end them before their retries are used up: version is the broker's, or empty.
//
// It is an error in the log, since messages are lost without one when it comes to it. Under the
// mode off the queue is as it was without us.
func (r *Retrier) warnOfLimit(queue *consumer.Queue, version string) {
	if queue.Policy.Protect == config.ProtectionPolicy {
		return
	}
	arguments := r.mainArguments(queue.Name, queue.Policy, queue.Plan)
	what := "RabbitMQ drops messages that are requeued too often: this quorum queue has no dead-letter exchange"
	limit, drops := rabbitmq.DropLimit(arguments, version)
	if n, given := header.Integer(arguments["x-delivery-limit"]); !drops && given &&
		queue.Policy.Strategy.CountsReturns() && n < int64(queue.Policy.MaxRetries()) {
		what = "RabbitMQ dead-letters messages before their last retry, without the retrier's headers"
		limit, drops = fmt.Sprintf("%d, and %d retries", n, queue.Policy.MaxRetries()), true
	}
	if !drops {
		return
	}
	if _, told := r.limitsTold.LoadOrStore(queue.Name, true); told {
		return
	}
	fields := watermill.LogFields{"topic": queue.Topic, "amqp_queue_name": queue.Name, "delivery_limit": limit}
	if err := errors.New("see " + aboutLimits); queue.Policy.Mode == config.ModeOff {
		r.options.Logger.Debug(what, fields.Add(watermill.LogFields{"error": err.Error()}))
	} else {
		r.options.Logger.Error(what, err, fields)
	}
}
