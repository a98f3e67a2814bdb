package dlq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/retry"
)

// Three orders fail in an outage. Afterwards those that the outage has failed go back to the
// service, one of them changed on its way.
func Example() {
	ctx, uri, orders := context.Background(), os.Getenv("AMQP_URI"), "orders-"+watermill.NewShortUUID()
	policy := config.Policy{Delays: []time.Duration{100 * time.Millisecond}}
	options := amqpretry.Options{Policies: config.Policies{Default: policy}}
	defer demo.TidyTopic(uri, orders, policy)
	demo.Run(demo.Service{
		Topic: orders, Keep: true, Options: options, Messages: []string{"order-1", "order-2", "order-3"},
		Handler: func(msg *message.Message) error {
			if msg.UUID == "order-2" {
				return retry.Permanent(errors.New("no such customer"))
			}
			return errors.New("the warehouse does not answer")
		},
	})

	// Before RabbitMQ 4.3 somebody must tell that no policy limits the deliveries of dead letters:
	// the management API, or this field.
	client, err := dlq.Open(ctx, dlq.Config{URI: uri, NoDeliveryLimitPolicy: true})
	if err != nil {
		panic(err)
	}
	defer func() { _ = client.Close() }()
	queue := client.Queue(orders) // its dead-letter queue, by the name of the main queue
	for letter, err := range queue.Browse(ctx, dlq.Filter{}) {
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s: %s, %s\n", letter.UUID, letter.Reason, letter.Error)
	}
	stat, err := queue.Stat(ctx, dlq.Filter{Reasons: []retry.Reason{retry.ReasonExhausted}})
	if err != nil {
		panic(err)
	}
	fmt.Printf("%d of %d are exhausted\n", stat.Matched, stat.Seen)

	// Nothing is lost: a dead letter leaves its queue when the broker has confirmed its copy, and
	// the undo file, here a buffer, has all of them as they were.
	var undo bytes.Buffer
	report, err := queue.Run(ctx, dlq.Plan{
		Kind:   dlq.Replay,
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
		panic(err)
	}
	fmt.Printf("%d of %d replayed, %d in the undo file\n", report.Done, report.Matched,
		bytes.Count(undo.Bytes(), []byte("\n")))

	demo.Run(demo.Service{ // after the outage
		Topic: orders, Keep: true, Options: options, Ends: 2,
		Handler: func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			fmt.Printf("shipped %q in attempt %d after %d calls in its last life\n", msg.Payload, attempt.Number,
				attempt.Calls)
			return nil
		},
	})
	// Unordered output:
	// order-1: exhausted, the warehouse does not answer
	// order-2: permanent, no such customer
	// order-3: exhausted, the warehouse does not answer
	// 2 of 3 are exhausted
	// 2 of 2 replayed, 2 in the undo file
	// shipped "order-1" in attempt 1 after 2 calls in its last life
	// shipped "order-3, by express" in attempt 1 after 2 calls in its last life
}
