package main

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	amqpdelay "github.com/amqpretry/watermill-retry/config/delay"
	"github.com/amqpretry/watermill-retry/retry"
)

// after is the service with the retrier. The delays are the same. Nothing is declared with the
// plugin's type, and a message that is given up is in the dead-letter queue.
func after(ctx context.Context, conf amqp.Config, topic string, policy config.Policy, out io.Writer) error {
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	policies := config.Policies{Default: policy}
	retrier, err := amqpv2.New(conf, amqpretry.Options{Policies: policies, Logger: logger})
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
	var shipped atomic.Int64
	router.AddConsumerHandler("ship", topic, subscriber, func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		err := ship(out, attempt.Number, msg)
		if err == nil && shipped.Add(1) == 2 {
			go router.Close() // the program ends with its orders
		}

		return err
	})
	if err := publish(retrier, subscriber, topic, "order-1"); err != nil {
		return err
	}
	if err := publishLater(retrier, topic, policy.Ladder, "order-2", 500*time.Millisecond, out); err != nil {
		return err
	}

	return router.Run(ctx)
}

// publishLater takes the place of a publish with the header x-delay. It returns when the broker has
// the message. A service makes the publisher once, and leaves the ladder out.
func publishLater(
	retrier *amqpv2.Retrier, topic string, ladder config.Ladder, id string, after time.Duration, out io.Writer,
) error {
	publisher, err := retrier.NewPublisher() // for messages without a delay
	if err != nil {
		return err
	}
	later, err := retrier.NewDelayPublisher(publisher, amqpdelay.Options{Ladder: ladder})
	if err != nil {
		return err
	}
	defer later.Close()
	msg := message.NewMessage(id, []byte(id))
	delay.Message(msg, delay.For(after))
	fmt.Fprintf(out, "%s: published, due in %v\n", id, after)

	return later.Publish(topic, msg)
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
