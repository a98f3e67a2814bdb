// Delays shows what a policy and a handler can say about waiting. Look at
//
//   - policies: a call at once, then delays that double,
//   - ask, the handler: RetryAfter uses an attempt up, Postpone does not.
package main

import (
	"context"
	"errors"
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

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/retry"
)

var policies = config.Policies{Default: config.Policy{
	Retries: 3,
	// 400ms, 800ms, 1.6s
	Backoff:   config.Backoff{Kind: config.BackoffExponential, Initial: 400 * time.Millisecond},
	Immediate: 1, // the first failure is followed by another call, without a wait
}}

// ask is the handler.
func ask(out io.Writer) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		fmt.Fprintf(out, "%s: attempt %d, call %d\n", msg.UUID, attempt.Number, attempt.Try)

		switch {
		case msg.UUID == "polite" && attempt.Calls == 0:
			return retry.RetryAfter(600*time.Millisecond, errors.New("429 Too Many Requests"))
		case msg.UUID == "patient" && attempt.Calls < 2:
			return retry.Postpone(100 * time.Millisecond) // the other half of it has not come yet
		case msg.UUID == "doomed":
			return errors.New("the database does not answer")
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
	topic := "delays-" + watermill.NewShortUUID()
	ids := []string{"doomed", "polite", "patient"}

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
	router.AddMiddleware(retrier.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	router.AddConsumerHandler("ask", topic, subscriber, ask(out))

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
		case retry.EventRetried, retry.EventPostponed:
			fmt.Fprintf(out, "%s: waits %v\n", event.Message.UUID, event.Verdict.Delay)
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
