package amqpretry

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/amqpconfig"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/middleware"
)

// Validate reports everything that is wrong with the options, with the path of the field.
func (o Options) Validate() error {
	var errs []error
	wrong := func(path, problem, wanted, found string) {
		errs = append(errs, &config.FieldError{Path: "Options." + path, Problem: problem, Wanted: wanted, Found: found})
	}

	errs = append(errs, config.WithPath("Options", o.Policies.Validate())...)
	errs = append(errs, config.WithPath("Options.Publisher", o.Publisher.Validate())...)
	errs = append(errs, o.validateGroups()...)
	for i, address := range o.Addresses {
		if err := connection.CheckAddress(address); err != nil {
			wrong(fmt.Sprintf("Addresses[%d]", i), err.Error(),
				"host:port or host, such as rabbit-2:5672: user, virtual host and TLS are those of the URI",
				found(address))
		}
	}
	if o.Concurrency < 0 || o.Concurrency > rabbitmq.MaxPrefetch {
		wrong("Concurrency", "out of bounds", "1..65535, or 0 for 1", strconv.Itoa(o.Concurrency))
	}
	if o.Prefetch < 0 || o.Prefetch > rabbitmq.MaxPrefetch {
		wrong("Prefetch", "out of bounds", "1..65535, or 0 for the default", strconv.Itoa(o.Prefetch))
	}
	for _, t := range []struct {
		path  string
		value time.Duration
	}{{"CloseTimeout", o.CloseTimeout}, {"HoldWarning", o.HoldWarning}} {
		if t.value < 0 {
			wrong(t.path, "negative", "more than 0", t.value.String())
		}
	}
	switch o.MiddlewareOrder {
	case "", middleware.OrderEnforce, middleware.OrderLog:
	default:
		wrong("MiddlewareOrder", "unknown", `"enforce" or "log"`, strconv.Quote(string(o.MiddlewareOrder)))
	}

	return errors.Join(errs...)
}

// found shows an address that cannot be read, but for what may be a password.
func found(address string) string {
	if i := strings.LastIndex(address, "@"); i >= 0 {
		return strconv.Quote("…" + address[i:])
	}

	return strconv.Quote(address)
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
		// Upstream: a transactional publish that was rolled back succeeds; no issue known, measured; watermill-amqp 2.1
		// and 3.1; TestNewRefuses; remove when Publish returns the error.
		{c.Transactional, "Publish.Transactional", "must be false: watermill-amqp reports success for a message that " +
			"it has rolled back; use ConfirmDelivery"},
		{c.Consume.NoRequeueOnNack, "Consume.NoRequeueOnNack", "must be false: a nack is what shutdowns and lost " +
			"connections use as well, their messages would be lost or dead-lettered"},
		// Upstream: a global prefetch is refused or ignored; rabbitmq/rabbitmq-server#15460; RabbitMQ 4.0 and later;
		// TestNewRefuses; remove when watermill-amqp has no such option.
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
