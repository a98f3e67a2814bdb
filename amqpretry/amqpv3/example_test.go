package amqpv3_test

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv3"
	"github.com/amqpretry/watermill-retry/config"
)

const exampleURI = "amqp://guest:guest@localhost:5672/"

// The retrier in a service on watermill-amqp v3. New checks everything and does not touch the
// broker.
func Example() {
	retrier, err := amqpv3.New(amqp.NewDurableQueueConfig(exampleURI), amqpretry.Options{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = retrier.Close() }() // after the router

	router, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		panic(err)
	}
	router.AddMiddleware(retrier.Middleware) // before all others

	// subscriber, err := retrier.NewSubscriber()
	// router.AddConsumerHandler("ship", "orders", subscriber, ship)

	fmt.Println("ready")
	// Output: ready
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
