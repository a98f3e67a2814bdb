package main

import (
	"context"
	"io"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
)

// policyOf says with a policy what Retry says with its fields.
func policyOf(r middleware.Retry) config.Policy {
	return config.Policy{
		Retries: r.MaxRetries,
		Backoff: config.Backoff{
			Kind: config.BackoffExponential, Initial: r.InitialInterval, Factor: r.Multiplier, Max: r.MaxInterval,
		},
		Jitter: r.RandomizationFactor,
	}
}

// after is the service with retries on the broker. Retry is gone: a few quick calls are the
// policy's Immediate.
func after(ctx context.Context, conf amqp.Config, topic string, out io.Writer) error {
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	policies := config.Policies{Default: policyOf(settings)}
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
	s := &ship{out: out, done: func() { go router.Close() }}
	router.AddConsumerHandler("ship", topic, subscriber, s.handle)
	if err := publish(conf, subscriber, topic, "order-1", "order-2"); err != nil {
		return err
	}

	return router.Run(ctx)
}
