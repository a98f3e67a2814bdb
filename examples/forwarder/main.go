// Forwarder shows Watermill's forwarder, as outboxes use it, on the retrier. One envelope is for a
// queue that exists, the other one for a queue that does not. Look at
//
//   - forward: the destination is the retrier's publisher. It returns publish.ErrUnroutable for the
//     second message, so its envelope is retried, and ends as a dead letter with that reason.
//     watermill-amqp's publisher would return nil, and the message would be lost,
//   - the middleware: the forwarder makes a router of its own unless it is given one that has the
//     middleware.
//
// An outbox keeps its envelopes in the database of the service, such as by watermill-sql. Here they
// are on RabbitMQ.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/publish"
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/retry"
)

var policies = config.Policies{Default: config.Policy{Delays: []time.Duration{200 * time.Millisecond}}}

// forward moves what is in envelopes to the topics that they name.
func forward(
	retrier *amqpv2.Retrier, router *message.Router, outbox string, subscriber message.Subscriber,
) (*forwarder.Forwarder, error) {
	destination, err := retrier.NewPublisher()
	if err != nil {
		return nil, err
	}

	return forwarder.NewForwarder(subscriber, destination, watermill.NopLogger{}, forwarder.Config{
		ForwarderTopic: outbox,
		Router:         router, // without one: Middlewares: []message.HandlerMiddleware{retrier.Middleware},
	})
}

// ship handles what was forwarded.
func ship(out io.Writer) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		fmt.Fprintf(out, "%s: shipped\n", msg.UUID)
		return nil
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string, out io.Writer) error {
	conf := amqp.NewDurableQueueConfig(uri)
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	id := watermill.NewShortUUID()
	outbox, orders, invoices := "outbox-"+id, "orders-"+id, "invoices-"+id

	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	var ended atomic.Int64
	report := func(event retry.Event) {
		switch {
		case event.Kind == retry.EventRetried && errors.Is(event.Err, publish.ErrUnroutable):
			fmt.Fprintln(out, "an envelope: no queue gets its message, try again")
			return
		case event.Kind == retry.EventDeadLettered:
			fmt.Fprintf(out, "an envelope: dead letter, %s: %s\n", event.Verdict.Reason,
				strings.ReplaceAll(event.Err.Error(), "-"+id, ""))
		case event.Kind == retry.EventSucceeded && event.Topic == orders:
		default:
			return
		}
		if ended.Add(1) == 2 {
			go router.Close()
		}
	}
	retrier, err := amqpv2.New(conf, amqpretry.Options{Policies: policies, Logger: logger, OnEvent: report})
	if err != nil {
		return err
	}
	defer retrier.Close()
	defer tidy.Up(uri, retrier, outbox, orders) // no service deletes its queues
	router.AddMiddleware(retrier.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	f, err := forward(retrier, router, outbox, subscriber)
	if err != nil {
		return err
	}
	router.AddConsumerHandler("ship", orders, subscriber, ship(out))

	if err := errors.Join(subscriber.SubscribeInitialize(outbox), subscriber.SubscribeInitialize(orders)); err != nil {
		return err
	}
	publisher, err := retrier.NewPublisher()
	if err != nil {
		return err
	}
	sender := forwarder.NewPublisher(publisher, forwarder.PublisherConfig{ForwarderTopic: outbox})
	if err := sender.Publish(orders, message.NewMessage("order-1", nil)); err != nil {
		return err
	}
	// Nobody has subscribed to this topic.
	if err := sender.Publish(invoices, message.NewMessage("invoice-1", nil)); err != nil {
		return err
	}

	return f.Run(ctx)
}
