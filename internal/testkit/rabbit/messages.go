package rabbit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

// uuidHeader is the header in which watermill-amqp puts the UUID of a message, if it is not told
// another.
const uuidHeader = "_watermill_message_uuid"

// Message is a publishing as Watermill's publisher makes it: persistent, with its UUID in
// [uuidHeader].
func Message(uuid, body string) amqp091.Publishing {
	return amqp091.Publishing{
		DeliveryMode: amqp091.Persistent, Headers: amqp091.Table{uuidHeader: uuid}, Body: []byte(body),
	}
}

// Messages makes one [Message] for each UUID, which is its body as well.
func Messages(uuids ...string) []amqp091.Publishing {
	messages := make([]amqp091.Publishing, len(uuids))
	for i, uuid := range uuids {
		messages[i] = Message(uuid, uuid)
	}

	return messages
}

// Numbered returns n UUIDs: prefix-0, prefix-1 and so on.
func Numbered(prefix string, n int) []string {
	uuids := make([]string, n)
	for i := range uuids {
		uuids[i] = prefix + "-" + strconv.Itoa(i)
	}

	return uuids
}

// UUID returns the UUID of a message as Watermill's own marshaler writes it.
func UUID(d amqp091.Delivery) string { return Text(d, uuidHeader) }

// Text returns the text of a header; empty where it has none.
func Text(d amqp091.Delivery, key string) string {
	text, _ := d.Headers[key].(string)
	return text
}

// Returns tells how often a quorum queue has given a message before, and got it back.
func Returns(d amqp091.Delivery) int {
	n := int64(0)
	for _, key := range []string{"x-delivery-count", "x-acquired-count"} { // the second from RabbitMQ 4.3 on
		if count, ok := d.Headers[key].(int64); ok {
			n = max(n, count)
		}
	}

	return int(n)
}

// Bodies returns the bodies of messages, in their order.
func Bodies(deliveries []amqp091.Delivery) []string {
	bodies := make([]string, len(deliveries))
	for i, d := range deliveries {
		bodies[i] = string(d.Body)
	}

	return bodies
}

// Publish publishes messages to a queue as they are. It fails the test unless the broker confirms
// each of them and returns none.
func (c *Client) Publish(queue string, messages ...amqp091.Publishing) {
	c.t.Helper()
	c.PublishTo("", queue, messages...)
}

// PublishTo is [Client.Publish] to an exchange.
func (c *Client) PublishTo(exchange, key string, messages ...amqp091.Publishing) {
	c.t.Helper()
	require.NoError(c.t, c.TryPublish(exchange, key, messages...), "publish to %q with key %q", exchange, key)
}

// ErrUnroutable is in the error of [Client.TryPublish] when the broker returns a message.
var ErrUnroutable = errors.New("unroutable")

// TryPublish publishes messages, mandatory, and waits until the broker has confirmed each.
func (c *Client) TryPublish(exchange, key string, messages ...amqp091.Publishing) error {
	return c.Try(func(channel *amqp091.Channel) error {
		if err := channel.Confirm(false); err != nil {
			return err
		}
		returns := channel.NotifyReturn(make(chan amqp091.Return, len(messages)))
		closed := channel.NotifyClose(make(chan *amqp091.Error, 1))

		confirms := make([]*amqp091.DeferredConfirmation, len(messages))
		for i, m := range messages {
			var err error
			if confirms[i], err = channel.PublishWithDeferredConfirm(exchange, key, true, false, m); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), await.Bound)
		defer cancel()
		for _, confirm := range confirms {
			switch confirmed, err := confirm.WaitContext(ctx); {
			case err != nil:
				return err
			case confirmed:
			case channel.IsClosed():
				return fmt.Errorf("the channel closed before the broker confirmed: %w", <-closed)
			default:
				return errors.New("the broker refused a message")
			}
		}
		select {
		case returned := <-returns: // the broker returns a message before it confirms it
			return fmt.Errorf("%w: %s %q", ErrUnroutable, returned.ReplyText, returned.Exchange)
		default:
			return nil
		}
	})
}

// Take waits until n messages are in a queue, which may come into being meanwhile, and takes n of
// them, in their order.
func (c *Client) Take(queue string, n int) []amqp091.Delivery {
	c.t.Helper()
	await.Until(c.t, func() bool { return c.Depth(queue) >= n }, "%d messages in queue %s", n, queue)
	taken := make([]amqp091.Delivery, n)
	c.Do(func(channel *amqp091.Channel) error {
		for i := range taken {
			await.Until(c.t, func() (ok bool) { // somebody may have a look at the others
				var err error
				taken[i], ok, err = channel.Get(queue, true)
				require.NoError(c.t, err)
				return ok
			}, "message %d of %d in queue %s", i+1, n, queue)
		}

		return nil
	})

	return taken
}

// Drain takes all that is in a queue, in its order, once the queue has no consumers any more. See
// [Drain].
func (c *Client) Drain(queue string) []amqp091.Delivery {
	c.t.Helper()
	c.Idle(queue)
	var all []amqp091.Delivery
	require.NoError(c.t, c.kept(func(channel *amqp091.Channel) (err error) {
		all, err = Drain(channel, queue)
		return err
	}))

	return all
}

// Drain takes all that is in a queue. It asks for one message after the other until the queue says
// that it is empty, as silence proves nothing, and the queue's counts may be old. A consumer that
// is cancelled proves nothing either: RabbitMQ 3.10 forgets what is on the way to it. What a
// channel held that has just been closed comes back when the queue has noticed: wait until it has
// no consumers before.
func Drain(channel *amqp091.Channel, queue string) ([]amqp091.Delivery, error) {
	var all []amqp091.Delivery
	for {
		d, ok, err := channel.Get(queue, true)
		if err != nil || !ok {
			return all, err
		}
		all = append(all, d)
	}
}

// Consume takes what comes to a queue until the test ends, as a service does that does not know the
// library.
func Consume(t testing.TB, channel *amqp091.Channel, queue string) <-chan amqp091.Delivery {
	t.Helper()
	deliveries, err := channel.Consume(queue, "", true, false, false, false, nil)
	require.NoError(t, err)

	return deliveries
}
