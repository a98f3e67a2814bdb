// Deduplicator shows duplicates that are dropped, while a message that failed comes through when it is retried.
package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/internal/play"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() { play.Main(run) }

func run(ctx context.Context, uri string, to io.Writer) error {
	out, topic := play.To(to), "deduplicator-"+watermill.NewShortUUID()

	deduplicator, err := protect.NewDeduplicator(protect.DeduplicatorConfig{
		// the order's number
		KeyFactory: func(msg *message.Message) (string, error) { return string(msg.Payload), nil },
		Window:     10 * time.Minute,
	})
	if err != nil {
		return err
	}

	called := false
	// In a service: router.AddMiddleware(retrier.Middleware, deduplicator.Middleware)
	bill := deduplicator.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		called = true
		attempt, _ := retry.AttemptFromContext(msg.Context())
		if msg.UUID == "order-1" && attempt.Number == 1 {
			out.Printf("%s: attempt %d, failed\n", msg.UUID, attempt.Number)
			return nil, errors.New("the bank does not answer")
		}
		out.Printf("%s: attempt %d, billed\n", msg.UUID, attempt.Number)

		return nil, nil
	})
	handler := func(msg *message.Message) error {
		called = false
		_, err := bill(msg)
		if err == nil && !called {
			out.Printf("%s: a duplicate, dropped\n", msg.UUID)
		}

		return err
	}

	options := amqpretry.Options{
		Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{time.Second}}}}
	defer play.Remove(uri, options, topic)
	for _, ids := range [][]string{{"order-1", "order-2", "order-2"}, {"order-1"}} {
		var messages []play.Message
		for _, id := range ids {
			messages = append(messages, play.Message{Topic: topic, ID: id})
		}
		if err := play.Run(ctx, uri, out, options, play.Handlers{topic: handler}, messages...); err != nil {
			return err
		}
	}

	return nil
}
