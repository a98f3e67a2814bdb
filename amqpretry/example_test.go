package amqpretry_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/publish"
	"github.com/amqpretry/watermill-retry/retry"
)

const exampleURI = "amqp://guest:guest@localhost:5672/"

// The retrier in a service. New checks everything and does not touch the broker.
func Example() {
	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig(exampleURI), amqpretry.Options{})
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

// Everything that is wrong is reported at once.
func ExampleNew() {
	conf := amqp.NewNonDurableQueueConfig(exampleURI)
	conf.Publish.Transactional = true

	_, err := amqpv2.New(conf, amqpretry.Options{
		Policies: config.Policies{
			Topics: map[string]config.Policy{"orders": {Delays: []time.Duration{time.Microsecond}}}},
		Concurrency: -1,
	})
	fmt.Println(err)
	// Output:
	// invalid config of the retrier:
	// Options.Policies.Topics["orders"].Delays[0]: too short: must be at least 1ms, got 1µs
	// Options.Concurrency: out of bounds: must be 1..65535, or 0 for 1, got -1
	// Config.Queue.Durable: must be true: retries wait in durable queues and would come back to a queue that is gone
	// Config.Publish.Transactional: must be false: watermill-amqp reports success for a message that it has rolled back; use ConfirmDelivery
}

// What the broker is to hold for a topic.
func ExampleRetrier_Plan() {
	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig(exampleURI), amqpretry.Options{
		Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{time.Second, 30 * time.Second}}},
	})
	if err != nil {
		panic(err)
	}
	defer func() { _ = retrier.Close() }()

	plan, err := retrier.Plan("orders")
	if err != nil {
		panic(err)
	}
	for _, q := range plan.Queues {
		fmt.Println(q.Name, q.Arguments["x-message-ttl"])
	}
	// Output:
	// orders.retry.1s 1000
	// orders.retry.30s 30000
	// orders.dlq <nil>
}

// An error of Publish names the messages that the broker may not have, and says why. Here no broker
// listens.
func ExampleRetrier_NewPublisher() {
	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig("amqp://guest:guest@127.0.0.1:1/"), amqpretry.Options{
		Publisher: publish.Options{Timeout: 100 * time.Millisecond},
		Logger:    watermill.NopLogger{},
	})
	if err != nil {
		panic(err)
	}
	defer func() { _ = retrier.Close() }() // closes the publisher, too

	publisher, err := retrier.NewPublisher() // instead of amqp.NewPublisher
	if err != nil {
		panic(err)
	}
	err = publisher.Publish("orders", message.NewMessage("order-1", nil), message.NewMessage("order-2", nil))

	var failed *publish.Error
	if errors.As(err, &failed) {
		for _, f := range failed.Failed {
			switch {
			case errors.Is(f.Err, publish.ErrUnroutable):
				fmt.Println(f.UUID, "has no queue")
			case f.MayBeStored:
				fmt.Println(f.UUID, "may arrive twice if it is published again")
			default:
				fmt.Println(f.UUID, "is not stored: publish it again")
			}
		}
	}
	// Output:
	// order-1 is not stored: publish it again
	// order-2 is not stored: publish it again
}

// Policies by topic.
func ExampleOptions() {
	policies := config.Policies{
		Default: config.Policy{Delays: []time.Duration{time.Second, time.Minute}, Retries: 5},
		Topics: map[string]config.Policy{
			"payments": {Retries: 6, Backoff: config.Backoff{Kind: config.BackoffExponential, Initial: time.Second,
				Max: time.Minute}},
			"mails": {Mode: config.ModeDeadLetter},
		},
	}

	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig(exampleURI), amqpretry.Options{
		Policies:    policies,
		Concurrency: 4,
		ErrorText:   func(err error) string { return "redacted" },
		OnEvent: func(e retry.Event) {
			if e.Kind == retry.EventDeadLettered {
				fmt.Println(e.Queue, e.Verdict.Reason)
			}
		},
	})
	if err != nil {
		panic(err)
	}
	defer func() { _ = retrier.Close() }()

	for _, topic := range []string{"orders", "payments", "mails"} {
		p := policies.For(topic)
		fmt.Println(topic, p.Schedule(), p.TotalWait())
	}
	// Output:
	// orders [1s 1m0s 1m0s 1m0s 1m0s] 4m1s
	// payments [1s 2s 4s 8s 16s 32s] 1m3s
	// mails [] 0s
}

// A single handler without retries, in a router that has them.
func ExampleRetrier_Poison() {
	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig(exampleURI), amqpretry.Options{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = retrier.Close() }()

	router, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		panic(err)
	}
	router.AddMiddleware(retrier.Middleware)

	var subscriber message.Subscriber // from retrier.NewSubscriber()
	handler := router.AddConsumerHandler("once", "mails", subscriber, func(*message.Message) error {
		return errors.New("goes to the dead-letter queue at once")
	})
	handler.AddMiddleware(retrier.Poison)

	fmt.Println("ready")
	// Output: ready
}
