// Strategies shows one failing message under each strategy. Look at
//
//   - policies: what differs is one field,
//   - ship, the handler: after a redelivery there was no wait, and only copies carry the errors of
//     earlier attempts,
//   - the loop in run: a broker before RabbitMQ 4.3 has no delayed retry, and the retrier says so.
package main

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/amqpretry/watermill-retry/examples/demo"
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
func ship(strategy string) message.NoPublishHandlerFunc {
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
		fmt.Printf("%s: attempt %d of %d, %s, errors known: %d\n", strategy, attempt.Number, attempt.MaxRetries+1,
			waited, len(attempt.History))

		return fmt.Errorf("the warehouse is closed (%d)", attempt.Number)
	}
}

// report prints what is done after each failure.
func report(strategy string, event retry.Event) {
	switch verdict := event.Verdict; {
	case event.Kind == retry.EventFailed && verdict.ByBroker:
		fmt.Printf("%s: failed, the broker brings it back\n", strategy)
	case event.Kind == retry.EventFailed && verdict.Action == retry.ActionRetry:
		fmt.Printf("%s: failed, a copy waits for %v\n", strategy, verdict.Delay)
	case event.Kind == retry.EventDeadLettered:
		fmt.Printf("%s: dead letter, %s after %d calls: %v\n", strategy, verdict.Reason, event.Calls, event.Err)
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string) error {
	conf := amqp.NewDurableQueueConfig(uri)
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	strategies := map[string]string{} // of topics
	var left atomic.Int64
	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Policies: policies, Logger: logger,
		OnEvent: func(event retry.Event) {
			report(strategies[event.Topic], event)
			if event.Kind == retry.EventDeadLettered && left.Add(-1) == 0 {
				go router.Close()
			}
		},
	})
	if err != nil {
		return err
	}
	defer retrier.Close()
	router.AddMiddleware(retrier.Middleware)
	router.AddPlugin(retrier.CheckRouter)

	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	publisher, err := retrier.NewPublisher()
	if err != nil {
		return err
	}
	for _, strategy := range []string{"queues", "cycle", "redelivery", "native"} {
		topic := strategy + "-" + watermill.NewShortUUID()
		defer demo.Tidy(uri, retrier, topic) // no service deletes its queues
		err := demo.Publish(publisher, subscriber, topic, "an order")
		var tooOld *topology.StrategyError
		switch {
		case errors.As(err, &tooOld):
			fmt.Printf("%s: not on this broker, it needs RabbitMQ 4.3 or later\n", strategy)
		case err != nil:
			return err
		default:
			router.AddConsumerHandler(topic, topic, subscriber, ship(strategy))
			strategies[topic] = strategy
			left.Add(1)
		}
	}

	return router.Run(ctx)
}
