// Replay shows package dlq in a program: it looks at the dead letters of a queue, counts them, and sends back those
// that an outage has failed, one of them changed on its way.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/internal/play"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() { play.Main(run) }

func run(ctx context.Context, uri string, to io.Writer) error {
	orders := "orders-" + watermill.NewShortUUID()
	defer play.Remove(uri, options(), orders)
	if err := outage(ctx, uri, orders); err != nil {
		return err
	}

	// Before RabbitMQ 4.3 it must be known that no policy limits the deliveries of dead letters: by the management API,
	// or so.
	client, err := dlq.Open(ctx, dlq.Config{URI: uri, NoDeliveryLimitPolicy: true})
	if err != nil {
		return err
	}
	defer client.Close()
	queue := client.Queue(orders) // its dead-letter queue, by the name of the main queue

	// Looking takes nothing out.
	for letter, err := range queue.Browse(ctx, dlq.Filter{}) {
		if err != nil {
			return err
		}
		fmt.Fprintf(to, "%s: %s, %s\n", letter.UUID, letter.Reason, letter.Error)
	}
	stat, err := queue.Stat(ctx, dlq.Filter{Reasons: []retry.Reason{retry.ReasonExhausted}})
	if err != nil {
		return err
	}
	fmt.Fprintf(to, "%d of %d are exhausted\n", stat.Matched, stat.Seen)

	// Nothing is lost by a replay: a letter leaves the dead-letter queue when the broker has confirmed its copy, and
	// the undo file, here a buffer, has all of them as they were.
	var undo bytes.Buffer
	report, err := queue.Replay(ctx, dlq.ReplayOptions{
		Filter: dlq.Filter{ErrorContains: "warehouse"},
		Rate:   100, // a second
		Undo:   &undo,
		By:     "ann@example.com",
		Edit: func(p *amqp091.Publishing) error {
			if bytes.Equal(p.Body, []byte("order-3")) {
				p.Body = []byte("order-3, by express")
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(to, "%d of %d replayed, %d in the undo file\n", report.Done, report.Matched,
		bytes.Count(undo.Bytes(), []byte("\n")))

	return open(ctx, uri, orders, report.Done, to)
}

// outage has three orders fail, one after the other.
func outage(ctx context.Context, uri, orders string) error {
	fail := func(msg *message.Message) error {
		if msg.UUID == "order-2" {
			return retry.Permanent(errors.New("no such customer"))
		}
		return errors.New("the warehouse does not answer")
	}
	for _, id := range []string{"order-1", "order-2", "order-3"} {
		err := play.Run(ctx, uri, play.To(io.Discard), options(), play.Handlers{orders: fail},
			play.Message{Topic: orders, ID: id})
		if err != nil {
			return err
		}
	}

	return nil
}

// open is the same service after the outage: it gets what was replayed.
func open(ctx context.Context, uri, orders string, replayed int, to io.Writer) error {
	there := make([]play.Message, replayed)
	for i := range there {
		there[i].IsThere = true
	}

	return play.Run(ctx, uri, play.To(to), options(), play.Handlers{
		orders: func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			fmt.Fprintf(to, "shipped %s: attempt %d after %d calls in its last life\n", msg.Payload, attempt.Number,
				attempt.Calls)
			return nil
		},
	}, there...)
}

func options() amqpretry.Options {
	return amqpretry.Options{Policies: config.Policies{
		Default: config.Policy{Delays: []time.Duration{100 * time.Millisecond}}}}
}
