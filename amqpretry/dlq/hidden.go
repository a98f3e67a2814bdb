package dlq

import (
	"cmp"
	"context"
	"fmt"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// hiddenUnknown is the number of hidden messages where nobody can tell it.
const hiddenUnknown = -1

// HiddenError says that a dead-letter queue has nothing to give, and that it may hold messages all
// the same: RabbitMQ 4.4 and later hold a message with the header x-opt-delivery-time back until
// that time, and AMQP does not count it. The management API does.
type HiddenError struct {
	// Queue is the name of the queue.
	Queue string
	// Version of the server.
	Version string
	// Why the number is not known.
	Why string
	// Do is what to do about it.
	Do string
}

func (e *HiddenError) Error() string {
	return fmt.Sprintf("cannot tell that dead-letter queue %q is empty: RabbitMQ %s does not count messages in AMQP "+
		"that it holds back until their x-opt-delivery-time, and %s; %s", e.Queue, e.Version, e.Why, e.Do)
}

// hidden returns how many messages of the queue the broker holds back, hiddenUnknown if only the
// management API could tell.
func (q *Queue) hidden(ctx context.Context, link *connection.Link) (int, error) {
	api := q.client.config.Management
	switch {
	case !rabbitmq.HoldsBack(q.client.version(link)):
		return 0, nil
	case api.URL == "":
		return hiddenUnknown, nil
	}

	client, err := httpapi.New(api.URL, cmp.Or(api.VHost, link.Config.Vhost, "/"), api.HTTPClient)
	if err != nil {
		return 0, err
	}
	found, err := client.Queue(ctx, q.name)
	if err != nil {
		return 0, err
	}

	return hiddenIn(found), nil
}

// hiddenIn reads the statistics of a queue.
func hiddenIn(q httpapi.Queue) int {
	switch {
	case q.Type != "" && q.Type != amqp091.QueueTypeQuorum: // only quorum queues hold back
		return 0
	case q.HeldBack() == nil:
		return hiddenUnknown
	default:
		return int(*q.HeldBack())
	}
}

// certain refuses to say that a queue is empty if nobody knows that.
func (q *Queue) certain(link *connection.Link, ready, hidden int) error {
	if ready > 0 || hidden != hiddenUnknown {
		return nil
	}
	e := &HiddenError{Queue: q.name, Version: q.client.version(link),
		Why: "no management API is given", Do: "give it (Config.Management, --management-url)"}
	if q.client.config.Management.URL != "" {
		e.Why, e.Do = "the management API has no statistics of the queue", "ask again in 10 seconds"
	}

	return e
}

func (c *Client) version(link *connection.Link) string { return cmp.Or(c.pretended, link.Version()) }
