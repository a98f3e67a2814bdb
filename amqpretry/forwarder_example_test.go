package amqpretry_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/publish"
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/retry"
)

// Watermill's forwarder, as outboxes use it. Its destination is the retrier's publisher, which
// returns publish.ErrUnroutable for a topic without a queue: the envelope is retried, and ends as a
// dead letter with that reason. With watermill-amqp's publisher the message would be lost.
//
// An outbox keeps its envelopes in the database of the service, such as by watermill-sql. Here they
// are on RabbitMQ.
func Example_forwarder() {
	uri, id := os.Getenv("AMQP_URI"), watermill.NewShortUUID()
	outbox, orders, invoices := "outbox-"+id, "orders-"+id, "invoices-"+id
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	done := demo.CloseAfter(router, 3)
	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig(uri), amqpretry.Options{
		Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{200 * time.Millisecond}}},
		Logger:   watermill.NopLogger{},
		OnEvent: func(event retry.Event) {
			switch {
			case event.Kind == retry.EventRetried && errors.Is(event.Err, publish.ErrUnroutable):
				fmt.Println("an envelope: no queue gets its message, try again")
			case event.Kind == retry.EventDeadLettered:
				fmt.Printf("an envelope: dead letter, %s:\n", event.Verdict.Reason)
				fmt.Println(strings.ReplaceAll(event.Err.Error(), "-"+id, ""))
			}
			done(event)
		},
	})
	if err != nil {
		panic(err)
	}
	defer func() { _ = retrier.Close() }()
	defer demo.Tidy(uri, retrier, outbox, orders)
	router.AddMiddleware(retrier.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		panic(err)
	}
	publisher, err := retrier.NewPublisher()
	if err != nil {
		panic(err)
	}

	forward, err := forwarder.NewForwarder(subscriber, publisher, watermill.NopLogger{}, forwarder.Config{
		ForwarderTopic: outbox,
		Router:         router, // without one: Middlewares: []message.HandlerMiddleware{retrier.Middleware},
	})
	if err != nil {
		panic(err)
	}
	router.AddConsumerHandler("ship", orders, subscriber, func(msg *message.Message) error {
		fmt.Printf("%s: shipped\n", msg.UUID)
		return nil
	})

	sender := forwarder.NewPublisher(publisher, forwarder.PublisherConfig{ForwarderTopic: outbox})
	err = errors.Join(
		subscriber.SubscribeInitialize(outbox), subscriber.SubscribeInitialize(orders), // nobody has invoices
		sender.Publish(orders, message.NewMessage("order-1", nil)),
		sender.Publish(invoices, message.NewMessage("invoice-1", nil)),
	)
	if err != nil {
		panic(err)
	}
	if err := forward.Run(context.Background()); err != nil {
		panic(err)
	}
	// Unordered output:
	// order-1: shipped
	// an envelope: no queue gets its message, try again
	// an envelope: dead letter, exhausted:
	// cannot publish a message: cannot publish 1 of 1 messages to topic "invoices": message "invoice-1" (not stored): no queue gets it: the queue "invoices" does not exist; subscribe to the topic once, or call SubscribeInitialize, before you publish
}
