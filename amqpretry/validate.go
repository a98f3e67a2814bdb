package amqpretry

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/amqpconfig"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/middleware"
)

// Validate reports everything that is wrong with the options, with the path of the field.
func (o Options) Validate() error {
	var problems amqpconfig.Problems
	problems = append(problems, config.WithPath("Options", o.Policies.Validate())...)
	problems = append(problems, config.WithPath("Options.Publisher", o.Publisher.Validate())...)
	problems = append(problems, o.validateGroups()...)
	problems.Addresses("Options.Addresses", o.Addresses)
	problems.Prefetch("Options.Concurrency", o.Concurrency, "1")
	problems.Prefetch("Options.Prefetch", o.Prefetch, "the default")
	problems.Duration("Options.CloseTimeout", o.CloseTimeout)
	problems.Duration("Options.HoldWarning", o.HoldWarning)
	switch o.MiddlewareOrder {
	case "", middleware.OrderEnforce, middleware.OrderLog:
	default:
		problems.Add("Options.MiddlewareOrder", "unknown", `"enforce" or "log"`,
			strconv.Quote(string(o.MiddlewareOrder)))
	}

	return errors.Join(problems...)
}

// validateConfig refuses what retries cannot work with, each with the reason.
func validateConfig(c amqpconfig.Config, concurrency int) error {
	var errs []error

	var all interface{ WrappedErrors() []error }
	if errors.As(c.Refused, &all) {
		errs = append(errs, all.WrappedErrors()...)
	} else {
		errs = append(errs, c.Refused)
	}

	for _, r := range []struct {
		refused bool
		path    string
		reason  string
	}{
		{!c.Queue.Durable, "Queue.Durable", "must be true: retries wait in durable queues and would come back to a " +
			"queue that is gone"},
		{c.Queue.AutoDelete, "Queue.AutoDelete", "must be false: retries would come back to a queue that is gone"},
		{c.Queue.Exclusive, "Queue.Exclusive", "must be false: retries would come back to a queue that is gone with " +
			"its connection"},
		{c.Queue.Arguments[amqp091.QueueTypeArg] == amqp091.QueueTypeStream, `Queue.Arguments["x-queue-type"]`,
			"must not be stream: nothing leaves a stream, so a retry would be one more message for all of its readers"},
		// Upstream: a transactional publish that was rolled back succeeds; no issue known,
		// measured; watermill-amqp 2.1 and 3.1; TestNewRefuses; remove when Publish returns the
		// error.
		{c.Transactional, "Publish.Transactional", "must be false: watermill-amqp reports success for a message that " +
			"it has rolled back; use ConfirmDelivery"},
		{c.Consume.NoRequeueOnNack, "Consume.NoRequeueOnNack", "must be false: a nack is what shutdowns and lost " +
			"connections use as well, their messages would be lost or dead-lettered"},
		// Upstream: a global prefetch is refused or ignored; rabbitmq/rabbitmq-server#15460;
		// RabbitMQ 4.0 and later; TestNewRefuses; remove when watermill-amqp has no such option.
		{c.Consume.Qos.Global, "Consume.Qos.Global", "must be false: quorum queues refuse it, and RabbitMQ 4.3 " +
			"ignores it"},
		{c.Consume.Exclusive && concurrency > 1, "Consume.Exclusive",
			fmt.Sprintf("must be false with Options.Concurrency %d: who wants one consumer only wants one message at "+
				"a time", concurrency)},
		{c.Consume.Qos.PrefetchCount < 0 || c.Consume.Qos.PrefetchCount > rabbitmq.MaxPrefetch,
			"Consume.Qos.PrefetchCount",
			fmt.Sprintf("must be 1..65535, or 0 for the default, got %d", c.Consume.Qos.PrefetchCount)},
		{c.Consume.Qos.PrefetchSize != 0, "Consume.Qos.PrefetchSize",
			fmt.Sprintf("must be 0, got %d: RabbitMQ does not implement it and closes the connection",
				c.Consume.Qos.PrefetchSize)},
	} {
		if r.refused {
			errs = append(errs, &config.FieldError{Path: "Config." + r.path, Problem: r.reason})
		}
	}
	if c.Connection.AmqpURI != "" { // else it is reported above
		if _, err := connection.ParseURI(c.Connection.AmqpURI); err != nil {
			errs = append(errs, &config.FieldError{Path: "Config.Connection.AmqpURI", Problem: err.Error()})
		}
	}
	if c.Connection.TLSConfig != nil && c.Connection.AmqpConfig != nil &&
		c.Connection.AmqpConfig.TLSClientConfig != nil {
		errs = append(errs, &config.FieldError{
			Path: "Config.Connection.TLSConfig", Problem: "must not be set together with " +
				"Config.Connection.AmqpConfig.TLSClientConfig",
		})
	}

	return errors.Join(errs...)
}
