package amqpretry_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/retry"
)

// An existing queue on its way to retries and back. Each policy goes out to every consumer of the
// queue before the next one does.
func Example_adoption() {
	orders := "orders-" + watermill.NewShortUUID()
	retries := config.Policy{Delays: []time.Duration{100 * time.Millisecond}}
	defer demo.TidyTopic(os.Getenv("AMQP_URI"), orders, retries)
	stock, err := amqp.NewSubscriber(amqp.NewDurableQueueConfig(os.Getenv("AMQP_URI")), watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	if err := errors.Join(stock.SubscribeInitialize(orders), stock.Close()); err != nil { // the queue as it is
		panic(err)
	}

	for _, step := range []struct {
		order  string
		policy config.Policy
	}{
		{"an old order", config.Policy{Mode: config.ModeOff}},
		{"a new order", retries},
		{"a last order", config.Policy{Mode: config.ModeOff}},
	} {
		failed := false
		demo.Run(demo.Service{
			Topic: orders, Keep: true, Messages: []string{step.order},
			Options: amqpretry.Options{Policies: config.Policies{Default: step.policy}},
			Handler: func(msg *message.Message) error {
				if !failed {
					failed = true
					return errors.New("not yet")
				}
				attempt, counted := retry.AttemptFromContext(msg.Context())
				fmt.Printf("%s failed once; attempt %d, counted: %t\n", msg.UUID, attempt.Number, counted)

				return nil
			},
		})
	}
	// Output:
	// an old order failed once; attempt 0, counted: false
	// a new order failed once; attempt 2, counted: true
	// a last order failed once; attempt 0, counted: false
}

// A policy changes while a message waits: the new version continues what waits under the old one.
// Versions with different policies can also run side by side. "amqpretry topology prune" deletes
// the retry queues that no policy uses any more.
func Example_changedPolicy() {
	orders := "orders-" + watermill.NewShortUUID()
	before := config.Policy{Delays: []time.Duration{time.Second, 10 * time.Second}}
	after := config.Policy{Delays: []time.Duration{500 * time.Millisecond}, Retries: 3}
	defer demo.TidyTopic(os.Getenv("AMQP_URI"), orders, before, after)

	demo.Run(demo.Service{
		Topic: orders, Keep: true, Messages: []string{"an order"},
		Until:   retry.EventRetried, // it ends while the order waits
		Options: amqpretry.Options{Policies: config.Policies{Default: before}},
		Handler: func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			fmt.Printf("old version: attempt %d\n", attempt.Number)

			return errors.New("not yet")
		},
	})
	demo.Run(demo.Service{
		Topic: orders, Keep: true, Ends: 1,
		Options: amqpretry.Options{Policies: config.Policies{Default: after}},
		Handler: func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			fmt.Printf("new version: attempt %d\n", attempt.Number)
			if attempt.Number < 3 {
				return errors.New("not yet")
			}

			return nil
		},
	})

	used := map[string]bool{}
	newPlan, _ := topology.New("orders", after, topology.Names{})
	for _, queue := range newPlan.Queues {
		used[queue.Name] = true
	}
	oldPlan, _ := topology.New("orders", before, topology.Names{})
	for _, queue := range oldPlan.Queues {
		if !used[queue.Name] {
			fmt.Println("obsolete:", queue.Name)
		}
	}
	// Output:
	// old version: attempt 1
	// new version: attempt 2
	// new version: attempt 3
	// obsolete: orders.retry.1s
	// obsolete: orders.retry.10s
}

// From Watermill's Retry, which sleeps in the handler while the orders behind wait. With the same
// settings as a policy, they go on.
func Example_fromRetryMiddleware() {
	settings := middleware.Retry{MaxRetries: 2, InitialInterval: 300 * time.Millisecond, Multiplier: 2}
	policy := config.Policy{
		Retries: settings.MaxRetries,
		Backoff: config.Backoff{
			Kind: config.BackoffExponential, Initial: settings.InitialInterval, Factor: settings.Multiplier,
			Max: settings.MaxInterval,
		},
		Jitter: settings.RandomizationFactor,
		// A few quick calls without a wait are its Immediate.
	}
	fmt.Println("the policy waits", policy.Schedule())

	ship := func() message.NoPublishHandlerFunc {
		calls := 0

		return func(msg *message.Message) error {
			if msg.UUID == "order-1" {
				if calls++; calls <= 2 {
					fmt.Printf("%s: call %d, failed\n", msg.UUID, calls)
					return errors.New("the warehouse does not answer")
				}
			}
			fmt.Printf("%s: shipped\n", msg.UUID)

			return nil
		}
	}
	fmt.Println("before")
	demo.Run(demo.Service{
		Stock:       true,
		Middlewares: []message.HandlerMiddleware{settings.Middleware},
		Handler:     ship(), Messages: []string{"order-1", "order-2"},
	})
	fmt.Println("after")
	demo.Run(demo.Service{
		Options: amqpretry.Options{Policies: config.Policies{Default: policy}},
		Handler: ship(), Messages: []string{"order-1", "order-2"},
	})
	// Output:
	// the policy waits [300ms 600ms]
	// before
	// order-1: call 1, failed
	// order-1: call 2, failed
	// order-1: shipped
	// order-2: shipped
	// after
	// order-1: call 1, failed
	// order-2: shipped
	// order-1: call 2, failed
	// order-1: shipped
}

// From Watermill's PoisonQueue. Inside of the retry middleware it would take errors away, so it is
// removed, and a handler moves what is left in its topic.
func Example_fromPoisonQueue() {
	conf := amqp.NewDurableQueueConfig(os.Getenv("AMQP_URI"))
	conf.Publish.ConfirmDelivery = true // Publish waits until RabbitMQ has the message
	orders := "orders-" + watermill.NewShortUUID()
	poison := orders + ".poison"
	publisher, err := amqp.NewPublisher(conf, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = publisher.Close() }()

	// Before: the service publishes to the poison topic what has failed once.
	poisonQueue, err := middleware.PoisonQueue(publisher, poison)
	if err != nil {
		panic(err)
	}
	ship := poisonQueue(func(*message.Message) ([]*message.Message, error) {
		return nil, errors.New("the warehouse is closed")
	})
	stock, err := amqp.NewSubscriber(conf, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	// Without its queue, the message would be lost.
	if err := errors.Join(stock.SubscribeInitialize(poison), stock.Close()); err != nil {
		panic(err)
	}
	if _, err := ship(message.NewMessage("order-1", nil)); err != nil {
		panic(err)
	}
	fmt.Println("order-1: before: failed and poisoned")

	// After: retries, and a handler that brings the message back.
	demo.Run(demo.Service{
		Topic: orders, Messages: []string{"order-2"}, Ends: 2,
		Handler: func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			fmt.Printf("%s: after: attempt %d\n", msg.UUID, attempt.Number)
			if attempt.Number == 1 {
				return errors.New("the warehouse does not answer")
			}

			return nil
		},
	}, demo.Service{
		Topic: poison, Ends: 1,
		Handler: func(msg *message.Message) error {
			back := msg.Copy()
			for key := range back.Metadata {
				if strings.HasSuffix(key, "_poisoned") {
					delete(back.Metadata, key)
				}
			}

			return publisher.Publish(orders, back) // only then msg is acknowledged
		},
	})
	// Unordered output:
	// order-1: before: failed and poisoned
	// order-1: after: attempt 1
	// order-1: after: attempt 2
	// order-2: after: attempt 1
	// order-2: after: attempt 2
}
