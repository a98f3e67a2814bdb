// Shared shows two topics that share one set of retry queues. Look at
//
//   - policies: the strategy; the name of the shared queues is in the options,
//   - the plans that run prints: each topic has a dead-letter queue of its own.
//
// Each handler gets back only its own messages.
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
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/retry"
)

var policies = config.Policies{Default: config.Policy{
	Delays:   []time.Duration{100 * time.Millisecond, 300 * time.Millisecond},
	Strategy: config.StrategyShared,
}}

// handle is the handler of both topics.
func handle(name string, out io.Writer) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		fmt.Fprintf(out, "%s: attempt %d, in the handler of %s\n", msg.UUID, attempt.Number, name)
		if attempt.Number < 3 {
			return errors.New("not yet")
		}

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
	orders, payments := "orders-"+id, "payments-"+id

	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	options := amqpretry.Options{Policies: policies, OnEvent: untilDone(router, 2, out), Logger: logger}
	options.Names.Shared = "retry-" + id // "retry" by default: then all services share
	retrier, err := amqpv2.New(conf, options)
	if err != nil {
		return err
	}
	defer retrier.Close()
	defer tidy.Up(uri, retrier, orders, payments) // no service deletes its queues
	for name, topic := range map[string]string{"orders": orders, "payments": payments} {
		plan, err := retrier.Plan(topic)
		if err != nil {
			return err
		}
		for _, queue := range plan.Queues {
			fmt.Fprintf(out, "%s: uses the queue %s\n", name, strings.ReplaceAll(queue.Name, "-"+id, ""))
		}
	}

	router.AddMiddleware(retrier.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	router.AddConsumerHandler("ship", orders, subscriber, handle("orders", out))
	router.AddConsumerHandler("charge", payments, subscriber, handle("payments", out))

	err = errors.Join(publish(retrier, subscriber, orders, "an order"),
		publish(retrier, subscriber, payments, "a payment"))
	if err != nil {
		return err
	}

	return router.Run(ctx)
}

// untilDone prints the end of each message, and closes the router after the last of n.
func untilDone(router *message.Router, n int64, out io.Writer) func(retry.Event) {
	var ended atomic.Int64

	return func(event retry.Event) {
		switch event.Kind {
		case retry.EventSucceeded:
		case retry.EventDeadLettered:
			fmt.Fprintf(out, "%s: dead letter, %s, calls: %d\n", event.Message.UUID, event.Verdict.Reason, event.Calls)
		default:
			return
		}
		if ended.Add(1) == n {
			go router.Close()
		}
	}
}

// publish sends a message for each id, once the queue exists.
func publish(retrier *amqpv2.Retrier, subscriber message.SubscribeInitializer, topic string, ids ...string) error {
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return err
	}
	publisher, err := retrier.NewPublisher()
	if err != nil {
		return err
	}
	defer publisher.Close()
	for _, id := range ids {
		if err := publisher.Publish(topic, message.NewMessage(id, []byte(id))); err != nil {
			return err
		}
	}

	return nil
}
