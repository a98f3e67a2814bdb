// Processor retries the messages of a consumer that only rejects, as consumers in other languages
// do. Look at
//
//   - declare: what the main queue needs, and nothing else of the service changes,
//   - consume: the service, which knows nothing of retries,
//   - run: the processor.
//
// The command amqpretry processor is the same processor as a process of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/processor"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/retry"
)

var policy = config.Policy{Delays: []time.Duration{100 * time.Millisecond, 300 * time.Millisecond}}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	orders := "orders-" + watermill.NewShortUUID()
	failed := orders + ".failed"

	connection, err := amqp091.Dial(uri)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	defer func() { // no service deletes its queues
		demo.TidyTopic(uri, orders, policy)
		_, _ = channel.QueueDelete(failed, false, false, false)
	}()
	if err := declare(channel, orders, failed); err != nil {
		return err
	}

	ended := make(chan struct{}, 10)
	processor, err := processor.New(processor.Config{
		URI:    uri,
		Queues: []processor.Queue{{Name: failed, MainQueue: orders}},
	}, processor.Options{
		Policies: config.Policies{Default: policy},
		Logger:   watermill.NopLogger{}, // this program prints what happens
		OnEvent: func(e retry.Event) {
			if e.Kind == retry.EventDeadLettered {
				fmt.Printf("%s: dead letter, %s\n", e.Message.UUID, e.Verdict.Reason)
				ended <- struct{}{}
			}
		},
	})
	if err != nil {
		return err
	}
	defer processor.Close()
	stopped := make(chan error, 1)
	go func() { stopped <- processor.Run(ctx) }()

	if err := consume(channel, orders, func() { ended <- struct{}{} }); err != nil {
		return err
	}
	for _, id := range []string{"order-1", "order-2", "order-3"} {
		err := channel.PublishWithContext(ctx, "", orders, true, false, amqp091.Publishing{
			MessageId: id, DeliveryMode: amqp091.Persistent, Body: []byte(id),
		})
		if err != nil {
			return err
		}
	}
	for range 3 {
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
	cancel()

	return <-stopped
}

// declare declares the queues of the service. The main queue dead-letters to its failed queue.
func declare(channel *amqp091.Channel, main, failed string) error {
	_, err := channel.QueueDeclare(failed, true, false, false, false, amqp091.Table{
		"x-queue-type":     "quorum",
		"x-delivery-limit": int64(2147483647), // a restart of the processor drops nothing
	})
	_, err2 := channel.QueueDeclare(main, true, false, false, false, amqp091.Table{
		"x-queue-type":              "quorum",
		"x-dead-letter-exchange":    "",
		"x-dead-letter-routing-key": failed,
		"x-dead-letter-strategy":    "at-least-once",
		"x-overflow":                "reject-publish",
	})

	return errors.Join(err, err2)
}

// consume is the service. It rejects what it cannot handle: basic_nack(requeue=False) in Python.
func consume(channel *amqp091.Channel, queue string, handled func()) error {
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	go func() {
		for d := range deliveries {
			failures := d.Headers["amqpretry-count"] // nil, "1", "2"
			if d.MessageId == "order-2" && failures == nil || d.MessageId == "order-3" {
				fmt.Printf("%s: rejected, failures before: %v\n", d.MessageId, failures)
				_ = d.Nack(false, false)

				continue
			}
			fmt.Printf("%s: handled, failures before: %v\n", d.MessageId, failures)
			_ = d.Ack(false)
			handled()
		}
	}()

	return nil
}
