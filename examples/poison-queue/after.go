package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/retry"
)

// after is the service with retries. PoisonQueue is gone: inside of the retry middleware it would
// take errors away.
func after(ctx context.Context, conf amqp.Config, topic string, out io.Writer) error {
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	retrier, err := amqpv2.New(conf, amqpretry.Options{Logger: logger})
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
	shipped := 0
	router.AddConsumerHandler("ship", topic, subscriber, func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		if attempt.Number == 1 {
			fmt.Fprintf(out, "%s: after: attempt 1, failed\n", msg.UUID)
			return errors.New("the warehouse does not answer")
		}
		fmt.Fprintf(out, "%s: after: attempt %d, shipped\n", msg.UUID, attempt.Number)
		if shipped++; shipped == 2 {
			go router.Close() // the program ends with the second order
		}

		return nil
	})

	publisher, err := amqp.NewPublisher(withConfirms(conf), logger)
	if err != nil {
		return err
	}
	defer publisher.Close()
	router.AddHandler("bring back", topic+poison, subscriber, topic, publisher,
		func(msg *message.Message) ([]*message.Message, error) {
			back := msg.Copy()
			for _, key := range []string{
				middleware.ReasonForPoisonedKey, middleware.PoisonedTopicKey, middleware.PoisonedHandlerKey,
				middleware.PoisonedSubscriberKey,
			} {
				delete(back.Metadata, key)
			}

			return []*message.Message{back}, nil // acknowledged when it is published
		})
	if err := publish(conf, subscriber, topic, "order-2"); err != nil {
		return err
	}

	return router.Run(ctx)
}

// withConfirms lets the publisher wait until RabbitMQ has the message.
func withConfirms(conf amqp.Config) amqp.Config {
	conf.Publish.ConfirmDelivery = true
	return conf
}
