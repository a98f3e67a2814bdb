package amqpretry_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	amqpdelay "github.com/amqpretry/watermill-retry/config/delay"
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/retry"
)

// delays are those after the first, second and third failure.
var delays = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond}

// declareDelayed was part of the service before: the plugin's exchange holds a message for as long
// as its header x-delay says.
func declareDelayed(channel *amqp091.Channel, queue string) error {
	err := channel.ExchangeDeclare("delayed", "x-delayed-message", true, false, false, false,
		amqp091.Table{"x-delayed-type": "direct"})
	if err != nil {
		return err
	}

	return channel.QueueBind(queue, queue, "delayed", false, nil)
}

// retryByPlugin is a middleware as services wrote it. It counts in a header, publishes a copy that
// the exchange delays, and acknowledges without knowing whether a queue will get the copy: the
// plugin confirms and routes later.
func retryByPlugin(channel *amqp091.Channel, queue string) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if err == nil {
				return produced, nil
			}
			failures, _ := strconv.Atoi(msg.Metadata.Get("failures"))
			if failures == len(delays) {
				return nil, nil // given up: the message is gone
			}
			return nil, channel.PublishWithContext(msg.Context(), "delayed", queue, false, false, amqp091.Publishing{
				DeliveryMode: amqp091.Persistent, Body: msg.Payload,
				Headers: amqp091.Table{
					"x-delay": delays[failures].Milliseconds(), "failures": strconv.Itoa(failures + 1),
				},
			})
		}
	}
}

// publishLaterByPlugin published a message that the exchange held for a delay.
func publishLaterByPlugin(ctx context.Context, channel *amqp091.Channel, queue, id string, after time.Duration) error {
	return channel.PublishWithContext(ctx, "delayed", queue, false, false, amqp091.Publishing{
		DeliveryMode: amqp091.Persistent, Body: []byte(id), Headers: amqp091.Table{"x-delay": after.Milliseconds()},
	})
}

// The plugin is archived, and RabbitMQ 4.3 cannot load it.
var _ = []any{declareDelayed, retryByPlugin, publishLaterByPlugin}

// From the delayed-message-exchange plugin to retries without a plugin: each retry waits exactly as
// long as with the plugin, and order-2 is published with a delay. A message that is given up is in
// the dead-letter queue. docs/how-to/leave-the-delayed-plugin.md has the steps.
//
// Switch the plugin off only after its exchange has delivered everything: messages that wait in it
// are in no queue, and are lost with it. The management UI shows their number.
func Example_fromDelayedPlugin() {
	orders := "orders-" + watermill.NewShortUUID()
	// A service leaves the ladder out, and shares the default one. This one can be deleted.
	ladder := config.Ladder{Prefix: orders + ".delay", Unit: 100 * time.Millisecond, Radix: 10, Levels: 2}
	policy := config.Policy{Delays: delays, Strategy: config.StrategyLadder, Ladder: ladder}
	conf := amqp.NewDurableQueueConfig(os.Getenv("AMQP_URI"))
	defer demo.TidyLadder(conf.Connection.AmqpURI, ladder, orders)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Policies: config.Policies{Default: policy}, OnEvent: demo.CloseAfter(router, 2), Logger: watermill.NopLogger{},
	})
	if err != nil {
		panic(err)
	}
	defer func() { _ = retrier.Close() }()
	defer demo.Tidy(conf.Connection.AmqpURI, retrier, orders)
	router.AddMiddleware(retrier.Middleware) // instead of retryByPlugin
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		panic(err)
	}
	router.AddConsumerHandler("ship", orders, subscriber, func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		fmt.Printf("%s: attempt %d\n", msg.UUID, attempt.Number)
		if attempt.Number <= 2 {
			return errors.New("the warehouse does not answer")
		}

		return nil
	})

	publisher, err := retrier.NewPublisher() // for messages without a delay
	if err != nil {
		panic(err)
	}
	later, err := retrier.NewDelayPublisher(publisher, amqpdelay.Options{Ladder: ladder})
	if err != nil {
		panic(err)
	}
	if err := demo.Publish(later, subscriber, orders, "order-1"); err != nil {
		panic(err)
	}
	order2 := message.NewMessage("order-2", nil)
	delay.Message(order2, delay.For(500*time.Millisecond)) // instead of publishLaterByPlugin
	if err := later.Publish(orders, order2); err != nil {
		panic(err)
	}
	if err := router.Run(context.Background()); err != nil {
		panic(err)
	}
	// Unordered output:
	// order-1: attempt 1
	// order-1: attempt 2
	// order-1: attempt 3
	// order-2: attempt 1
	// order-2: attempt 2
	// order-2: attempt 3
}
