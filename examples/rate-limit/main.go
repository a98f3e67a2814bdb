// Rate-limit shows a handler that may be called once in a second. Look at
//
//   - newLimit: a message waits in the service for up to 200 ms, and on the broker when its turn is
//     later,
//   - run: the limit's middleware comes after the retry middleware.
//
// A message that waits for its turn uses no attempt up.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/time/rate"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/retry"
)

var policies = config.Policies{Default: config.Policy{Delays: []time.Duration{time.Second, 2 * time.Second}}}

func newLimit() (*protect.RateLimit, error) {
	return protect.NewRateLimit(protect.RateLimitConfig{
		Limit: rate.Every(time.Second), Burst: 1, MaxWait: 200 * time.Millisecond,
	})
}

// send is the handler.
func send(out io.Writer) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		fmt.Fprintf(out, "%s: sent, attempt %d\n", msg.UUID, attempt.Number)

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
	topic := "rate-limit-" + watermill.NewShortUUID()
	ids := []string{"mail-1", "mail-2", "mail-3"}

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
	limit, err := newLimit()
	if err != nil {
		return err
	}
	router.AddMiddleware(retrier.Middleware, limit.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	router.AddConsumerHandler("send", topic, subscriber, send(out))

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
		case retry.EventPostponed:
			fmt.Fprintf(out, "%s: postponed\n", event.Message.UUID)
			return
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
	for _, id := range ids {
		if err := publisher.Publish(topic, message.NewMessage(id, []byte(id))); err != nil {
			return err
		}
	}

	return nil
}
