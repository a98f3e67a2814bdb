package dlq

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// describe returns type and arguments of a queue. seen tells whether it also has its policies,
// which only the management API can tell. AMQP has no question for arguments: so describe declares
// the queue as it is believed to be, which changes nothing of a queue that exists, and the broker
// answers with the first difference. The management API gets some time to know the policies of a
// new queue.
func (c *Client) describe(ctx context.Context, link *connection.Link, name string, believed amqp091.Table,
	wait time.Duration) (q httpapi.Queue, seen bool, err error) {
	api := c.config.Management
	if api.URL == "" {
		arguments, err := argumentsOf(c.asker(link), name, believed)
		kind, _ := arguments[amqp091.QueueTypeArg].(string)
		return httpapi.Queue{Name: name, Type: cmp.Or(kind, amqp091.QueueTypeClassic),
			Arguments: httpapi.Arguments(arguments)}, false, err // also with an error: what is known until then
	}

	client, err := httpapi.New(api.URL, cmp.Or(api.VHost, link.Config.Vhost, "/"), api.HTTPClient)
	if err != nil {
		return q, false, err
	}
	for began := time.Now(); ; {
		q, err = client.Queue(ctx, name)
		known := q.Effective != nil || q.Type == amqp091.QueueTypeClassic // which has no delivery limit
		if err != nil || known || time.Since(began) >= wait {
			return q, q.Effective != nil, err
		}
		select {
		case <-time.After(statisticsTime / 30):
		case <-ctx.Done():
			return q, false, context.Cause(ctx)
		}
	}
}

// statisticsTime is how long the management API may take to know a queue: it gets its statistics
// every 5 seconds.
const statisticsTime = 15 * time.Second

// mostArguments bounds the questions: a queue has few arguments that are compared.
const mostArguments = 24

// argumentsOf finds out the arguments of a queue that exists, beginning with those that it is
// believed to have.
func argumentsOf(a asker, queue string, believed amqp091.Table) (_ amqp091.Table, err error) {
	arguments, flags := maps.Clone(believed), map[string]bool{"durable": true}
	for range mostArguments {
		err = declareOnce(a, queue, flags, arguments)
		conflict := (*topology.ConflictError)(nil)
		if !errors.As(err, &conflict) {
			return arguments, err
		}
		switch conflict.Argument {
		case "durable", "auto_delete", "exclusive":
			flags[conflict.Argument] = !flags[conflict.Argument]
		case amqp091.QueueTypeArg: // the other arguments may be none of this type
			arguments = amqp091.Table{}
			setArgument(arguments, conflict.Argument, conflict.Found)
		case "":
			return arguments, err
		default:
			setArgument(arguments, conflict.Argument, conflict.Found)
		}
	}

	return arguments, err
}

// setArgument takes over what the broker has said of an argument. It does not say clearly of what
// type it is.
func setArgument(arguments amqp091.Table, name, found string) {
	if found == "none" {
		delete(arguments, name)
		return
	}
	var value any = strings.Trim(found, `"`)
	if n, err := strconv.ParseInt(found, 10, 64); err == nil && arguments[name] != n {
		value = n
	} else if b, err := strconv.ParseBool(found); err == nil && arguments[name] != b {
		value = b
	}
	arguments[name] = value
}

// declareOnce has a channel of its own, as the broker closes it with a refusal.
func declareOnce(a asker, queue string, flags map[string]bool, arguments amqp091.Table) error {
	err := a.onChannel(func(channel *amqp091.Channel) error {
		_, err := channel.QueueDeclare(queue, flags["durable"], flags["auto_delete"], flags["exclusive"], false,
			arguments)
		return err
	})

	return topology.Explain("", rabbitmq.KindQueue, queue, err)
}
