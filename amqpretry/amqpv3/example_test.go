package amqpv3_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv3"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/retry"
)

const exampleURI = "amqp://guest:guest@localhost:5672/"

// A service on watermill-amqp v3: amqpv3.New takes the place of amqpv2.New.
func Example() {
	uri, orders := os.Getenv("AMQP_URI"), "orders-"+watermill.NewShortUUID()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	retrier, err := amqpv3.New(amqp.NewDurableQueueConfig(uri), amqpretry.Options{
		OnEvent: demo.CloseAfter(router, 1), Logger: watermill.NopLogger{},
	})
	if err != nil {
		panic(err)
	}
	defer func() { _ = retrier.Close() }() // after the router
	defer demo.Tidy(uri, retrier, orders)  // no service deletes its queues

	router.AddMiddleware(retrier.Middleware) // before all others
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		panic(err)
	}
	router.AddConsumerHandler("ship", orders, subscriber, func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		fmt.Printf("%s: attempt %d\n", msg.UUID, attempt.Number)
		if attempt.Number == 1 {
			return errors.New("the warehouse does not answer")
		}

		return nil
	})
	publisher, err := retrier.NewPublisher()
	if err != nil {
		panic(err)
	}
	if err := demo.Publish(publisher, subscriber, orders, "order-1"); err != nil {
		panic(err)
	}
	if err := router.Run(context.Background()); err != nil {
		panic(err)
	}
	// Output:
	// order-1: attempt 1
	// order-1: attempt 2
}

// Topics of one exchange of type topic may share a queue, under one policy.
func ExampleNew() {
	retrier, err := amqpv3.New(amqp.NewDurableTopicConfig(exampleURI, "shop", "shipping"), amqpretry.Options{
		Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{time.Second, 30 * time.Second}}},
	})
	if err != nil {
		panic(err)
	}
	defer func() { _ = retrier.Close() }()

	for _, topic := range []string{"order.paid", "order.returned"} {
		plan, err := retrier.Plan(topic)
		if err != nil {
			panic(err)
		}
		fmt.Println(topic, plan.Queue, plan.DeadLetterQueue)
	}
	// Output:
	// order.paid shipping shipping.dlq
	// order.returned shipping shipping.dlq
}
