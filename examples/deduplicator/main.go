// Deduplicator shows duplicates that are dropped, while a message that has failed comes through
// when it is retried. Look at
//
//   - newDeduplicator: the key that two equal messages share, here the number of the order. The
//     default is the UUID, which a publisher that sends an order twice does not repeat,
//   - run: its middleware comes after the retry middleware.
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
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/retry"
)

var policies = config.Policies{Default: config.Policy{Delays: []time.Duration{time.Second}}}

func newDeduplicator() (*protect.Deduplicator, error) {
	return protect.NewDeduplicator(protect.DeduplicatorConfig{
		KeyFactory: func(msg *message.Message) (string, error) {
			return strings.TrimSuffix(string(msg.Payload), " again"), nil
		},
		Window: 10 * time.Minute,
	})
}

// bill is the handler. The bank does not answer the first call for order-1.
func bill(out io.Writer) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		if msg.UUID == "order-1" && attempt.Number == 1 {
			fmt.Fprintf(out, "%s: attempt %d, failed\n", msg.UUID, attempt.Number)
			return errors.New("the bank does not answer")
		}
		fmt.Fprintf(out, "%s: attempt %d, billed\n", msg.UUID, attempt.Number)

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
	topic := "deduplicator-" + watermill.NewShortUUID()
	ids := []string{"order-1", "order-2", "order-2 again"}

	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Policies: policies, OnEvent: untilDone(router, int64(len(ids)), out), Logger: logger,
	})
	if err != nil {
		return err
	}
	defer retrier.Close()
	defer tidy.Up(uri, retrier, topic) // no service deletes its queues
	deduplicator, err := newDeduplicator()
	if err != nil {
		return err
	}
	router.AddMiddleware(retrier.Middleware, deduplicator.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	router.AddConsumerHandler("bill", topic, subscriber, bill(out))

	if err := publish(retrier, subscriber, topic, ids...); err != nil {
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
			fmt.Fprintf(out, "%s: acknowledged\n", event.Message.UUID)
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
	for _, id := range ids {
		if err := publisher.Publish(topic, message.NewMessage(id, []byte(id))); err != nil {
			return err
		}
	}

	return nil
}
