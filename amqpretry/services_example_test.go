package amqpretry_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/retry"
)

// One event and three services, each with a queue of its own. The retries of the service that fails
// come to its queue only: the others see the event once.
func Example_fanOut() {
	uri, event := os.Getenv("AMQP_URI"), "order-shipped-"+watermill.NewShortUUID()
	defer demo.TidyExchanges(uri, event)

	var services []demo.Service // in real life, each is a process of its own
	for name, handler := range map[string]message.NoPublishHandlerFunc{
		"stock":   func(*message.Message) error { return nil },
		"reports": func(*message.Message) error { return nil },
		"mails":   func(*message.Message) error { return errors.New("the mail server does not answer") },
	} {
		services = append(services, demo.Service{
			Config: amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(name)),
			Topic:  event, Ends: 1, Handler: handler,
			Options: amqpretry.Options{
				Policies: config.Policies{Default: config.Policy{
					Delays: []time.Duration{200 * time.Millisecond}, Retries: 2,
				}},
				OnEvent: func(e retry.Event) {
					if e.Kind == retry.EventSucceeded || e.Kind == retry.EventDeadLettered {
						fmt.Printf("%s: %s %s, calls: %d\n", name, e.Message.UUID, e.Kind, e.Calls)
					}
				},
			},
		})
	}
	services[0].Messages = []string{"event-1"}
	demo.Run(services...)
	// Unordered output:
	// mails: event-1 dead-lettered, calls: 3
	// reports: event-1 succeeded, calls: 1
	// stock: event-1 succeeded, calls: 1
}

// Services with the strategy shared wait in one set of retry queues. Each has its own dead-letter
// queue, and each handler gets back only its own messages.
func ExampleOptions_sharedQueues() {
	id := watermill.NewShortUUID()
	options := amqpretry.Options{Policies: config.Policies{Default: config.Policy{
		Delays:   []time.Duration{100 * time.Millisecond, 300 * time.Millisecond},
		Strategy: config.StrategyShared,
	}}}
	options.Names.Shared = "retry-" + id // "retry" by default: then all services share

	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig(exampleURI), options)
	if err != nil {
		panic(err)
	}
	defer func() { _ = retrier.Close() }()
	for _, topic := range []string{"orders", "payments"} {
		plan, err := retrier.Plan(topic)
		if err != nil {
			panic(err)
		}
		for _, queue := range plan.Queues {
			fmt.Printf("%s: uses the queue %s\n", topic, strings.ReplaceAll(queue.Name, "-"+id, ""))
		}
	}

	handle := func(name string) message.NoPublishHandlerFunc {
		return func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			fmt.Printf("%s: attempt %d, in the handler of %s\n", msg.UUID, attempt.Number, name)
			if attempt.Number < 3 {
				return errors.New("not yet")
			}

			return nil
		}
	}
	demo.Run(
		demo.Service{Options: options, Handler: handle("orders"), Messages: []string{"an order"}},
		demo.Service{Options: options, Handler: handle("payments"), Messages: []string{"a payment"}},
	)
	// Unordered output:
	// a payment: attempt 1, in the handler of payments
	// a payment: attempt 2, in the handler of payments
	// a payment: attempt 3, in the handler of payments
	// an order: attempt 1, in the handler of orders
	// an order: attempt 2, in the handler of orders
	// an order: attempt 3, in the handler of orders
	// orders: uses the queue retry.100ms
	// orders: uses the queue retry.300ms
	// orders: uses the queue orders.dlq
	// payments: uses the queue retry.100ms
	// payments: uses the queue retry.300ms
	// payments: uses the queue payments.dlq
}

// payloads is a logger that prints the payloads of failed messages.
type payloads struct{ watermill.NopLogger }

func (payloads) Info(_ string, fields watermill.LogFields) {
	if payload, ok := fields["payload"]; ok {
		fmt.Printf("log: %s: %s\n", fields["verdict"], payload)
	}
}

func (l payloads) With(watermill.LogFields) watermill.LoggerAdapter { return l }

// Secrets are kept out of dead letters, histories and logs.
func ExampleOptions_secrets() {
	cardNumber := regexp.MustCompile(`\d{12,19}`)
	redact := func(text string) string { return cardNumber.ReplaceAllString(text, "[card]") }

	demo.Run(demo.Service{
		Options: amqpretry.Options{
			Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{100 * time.Millisecond}}},
			// The text of every error, before it is written on a message or logged.
			ErrorText: func(err error) string { return redact(err.Error()) },
			// Logs have payloads only with this function.
			PayloadText: func(payload []byte) string { return redact(string(payload)) },
			// PanicStacks: true adds the stack to the text of a panic.
			Logger: payloads{},
		},
		Handler: func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			for _, failed := range attempt.History {
				fmt.Printf("call %d: %s\n", failed.Number, failed.Error)
			}
			if attempt.Last {
				return nil
			}

			panic("no connection for " + string(msg.Payload))
		},
		Messages: []string{"4000123412341234"},
	})
	// Output:
	// log: retry 1 after 100ms: [card]
	// call 1: handler panicked: no connection for [card]
}

// Handlers that are added while the router runs: Prepare declares the topologies of all their
// topics together, and returns all errors.
func ExampleSubscriber_Prepare() {
	uri, id := os.Getenv("AMQP_URI"), watermill.NewShortUUID()
	topics := []string{"orders-" + id, "invoices-" + id, "returns-" + id}
	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig(uri), amqpretry.Options{Logger: watermill.NopLogger{}})
	if err != nil {
		panic(err)
	}
	defer func() { _ = retrier.Close() }()
	defer demo.Tidy(uri, retrier, topics...) // no service deletes its queues
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		panic(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := subscriber.Prepare(ctx, topics...); err != nil {
		panic(err)
	}
	for _, topic := range topics { // router.AddConsumerHandler and router.RunHandlers do this
		if _, err := subscriber.Subscribe(ctx, topic); err != nil {
			panic(err)
		}
	}
	fmt.Println("consuming from", len(topics), "queues")
	// Output:
	// consuming from 3 queues
}
