// Circuit-breaker shows a breaker around handlers: while their dependency is down, messages wait on
// the broker and use no attempt up. Look at
//
//   - newBreaker: it opens after two failures in a row, and lets a message try again after 1.5 s,
//   - run: the breaker's middleware comes after the retry middleware.
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
	"github.com/sony/gobreaker"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/retry"
)

var policies = config.Policies{Default: config.Policy{Delays: []time.Duration{2 * time.Second}, Retries: 2}}

func newBreaker(out io.Writer) (*protect.CircuitBreaker, error) {
	return protect.NewCircuitBreaker(protect.CircuitBreakerConfig{Settings: gobreaker.Settings{
		Timeout:     1500 * time.Millisecond,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 2 },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			fmt.Fprintf(out, "the breaker was %s and is %s\n", from, to)
		},
	}})
}

// ship is the handler. The warehouse does not answer the first two calls.
func ship(out io.Writer) message.NoPublishHandlerFunc {
	var calls atomic.Int64

	return func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		if calls.Add(1) <= 2 {
			fmt.Fprintf(out, "%s: attempt %d, failed\n", msg.UUID, attempt.Number)
			return errors.New("the warehouse does not answer")
		}
		fmt.Fprintf(out, "%s: attempt %d, shipped\n", msg.UUID, attempt.Number)

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
	topic := "circuit-breaker-" + watermill.NewShortUUID()
	ids := []string{"order-1", "order-2", "order-3", "order-4"}

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
	breaker, err := newBreaker(out)
	if err != nil {
		return err
	}
	router.AddMiddleware(retrier.Middleware, breaker.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	router.AddConsumerHandler("ship", topic, subscriber, ship(out))

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
