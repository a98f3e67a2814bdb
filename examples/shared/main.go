// Shared shows two topics that share one set of retry queues. Each gets back what is its own, and each has a
// dead-letter queue of its own.
package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/internal/play"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() { play.Main(run) }

func run(ctx context.Context, uri string, to io.Writer) error {
	id := watermill.NewShortUUID()
	out, orders, payments := play.To(to), "orders-"+id, "payments-"+id

	options := amqpretry.Options{Logger: watermill.NopLogger{}, Policies: config.Policies{Default: config.Policy{
		Delays: []time.Duration{100 * time.Millisecond, 300 * time.Millisecond},
		Scope:  config.ScopeShared,
	}}}
	options.Names.Shared = "retry-" + id // "retry" by default: then all services share
	defer play.Remove(uri, options, orders, payments)

	retrier, err := amqpretry.New(amqp.NewDurableQueueConfig(uri), options)
	if err != nil {
		return err
	}
	for _, topic := range []string{orders, payments} {
		plan, err := retrier.Plan(topic)
		if err != nil {
			return err
		}
		for _, q := range plan.Queues {
			out.Printf("%s\n", strings.ReplaceAll(q.Name, "-"+id, ""))
		}
	}
	if err := retrier.Close(); err != nil {
		return err
	}

	handler := func(name string) message.NoPublishHandlerFunc {
		return func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			out.Printf("%s: %s: attempt %d\n", name, msg.UUID, attempt.Number)
			if attempt.Number < 3 {
				return errors.New("not yet")
			}

			return nil
		}
	}
	if err := play.Run(ctx, uri, out, options, play.Handlers{orders: handler("orders"), payments: handler("payments")},
		play.Message{Topic: orders, ID: "an order"}); err != nil {
		return err
	}

	return play.Run(ctx, uri, out, options, play.Handlers{orders: handler("orders"), payments: handler("payments")},
		play.Message{Topic: payments, ID: "a payment"})
}
