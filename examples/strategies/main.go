// Strategies shows one failing message under each strategy. Look at
//
//   - policies: what differs is one field,
//   - ship, the handler: after a redelivery there was no wait, and only copies carry the errors of
//     earlier attempts,
//   - subscribe: a broker before RabbitMQ 4.3 has no delayed retry, and the retrier says so.
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
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/retry"
)

var policies = config.Policies{
	Default: config.Policy{Delays: []time.Duration{time.Second}, Retries: 2}, // by copies
	Topics: map[string]config.Policy{
		"cycle-*":      {Strategy: config.StrategyCycle},
		"redelivery-*": {Strategy: config.StrategyRedelivery},
		"native-*":     {Strategy: config.StrategyNative},
	},
}

// ship is the handler of the only message of a strategy.
func ship(strategy string, out io.Writer) message.NoPublishHandlerFunc {
	var last time.Time

	return func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		waited := "after 1s"
		switch {
		case attempt.Number == 1:
			waited = "fresh"
		case time.Since(last) < 990*time.Millisecond:
			waited = "at once"
		}
		last = time.Now()
		fmt.Fprintf(out, "%s: attempt %d of %d, %s, errors known: %d\n", strategy, attempt.Number, attempt.MaxRetries+1,
			waited, len(attempt.History))

		return fmt.Errorf("the warehouse is closed (%d)", attempt.Number)
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
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	topics := map[string]string{} // to their strategies
	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Policies: policies, OnEvent: untilDone(router, topics, out), Logger: logger,
	})
	if err != nil {
		return err
	}
	defer retrier.Close()
	router.AddMiddleware(retrier.Middleware)
	router.AddPlugin(retrier.CheckRouter)

	for _, strategy := range []string{"queues", "cycle", "redelivery", "native"} {
		topic := strategy + "-" + watermill.NewShortUUID()
		defer tidy.Up(uri, retrier, topic) // no service deletes its queues
		err := subscribe(router, retrier, topic, ship(strategy, out))
		var tooOld *topology.StrategyError
		switch {
		case errors.As(err, &tooOld):
			fmt.Fprintf(out, "%s: not on this broker, it needs RabbitMQ 4.3 or later\n", strategy)
		case err != nil:
			return err
		default:
			topics[topic] = strategy
		}
	}

	return router.Run(ctx)
}

// subscribe declares the queue of a topic, publishes its message, and adds the handler.
func subscribe(
	router *message.Router, retrier *amqpv2.Retrier, topic string, handler message.NoPublishHandlerFunc,
) error {
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return err
	}
	publisher, err := retrier.NewPublisher()
	if err != nil {
		return err
	}
	router.AddConsumerHandler(topic, topic, subscriber, handler)

	return errors.Join(publisher.Publish(topic, message.NewMessage(watermill.NewUUID(), []byte("an order"))),
		publisher.Close())
}

// untilDone prints what is done after each failure, and closes the router after the last dead
// letter.
func untilDone(router *message.Router, topics map[string]string, out io.Writer) func(retry.Event) {
	var ended atomic.Int64

	return func(event retry.Event) {
		switch verdict := event.Verdict; {
		case event.Kind == retry.EventFailed && verdict.ByBroker:
			fmt.Fprintf(out, "%s: failed, the broker brings it back\n", topics[event.Topic])
		case event.Kind == retry.EventFailed && verdict.Action == retry.ActionRetry:
			fmt.Fprintf(out, "%s: failed, a copy waits for %v\n", topics[event.Topic], verdict.Delay)
		case event.Kind == retry.EventDeadLettered:
			fmt.Fprintf(out, "%s: dead letter, %s after %d calls: %v\n", topics[event.Topic], verdict.Reason,
				event.Calls, event.Err)
			if ended.Add(1) == int64(len(topics)) {
				go router.Close()
			}
		}
	}
}
