package main

import (
	"context"
	"io"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/retry"
)

// after is the service with the retrier. The delays are the same. Nothing is declared with the plugin's type, and a
// message that is given up is in the dead-letter queue.
func after(ctx context.Context, conf amqp.Config, topic string, policy config.Policy, out io.Writer) error {
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	policies := config.Policies{Default: policy}
	retrier, err := amqpretry.New(conf, amqpretry.Options{Policies: policies, Logger: logger})
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
	router.AddConsumerHandler("ship", topic, subscriber, func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		err := ship(out, attempt.Number, msg)
		if err == nil {
			go router.Close() // the program ends with its order
		}

		return err
	})
	if err := publish(conf, subscriber, topic, "order-1"); err != nil {
		return err
	}

	return router.Run(ctx)
}

// publish sends a message for each id, once the queue exists.
func publish(conf amqp.Config, subscriber message.SubscribeInitializer, topic string, ids ...string) error {
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(conf, watermill.NopLogger{})
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
