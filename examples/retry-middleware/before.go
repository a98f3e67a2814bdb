package main

import (
	"context"
	"io"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
)

// before is the service as it was.
func before(ctx context.Context, conf amqp.Config, topic string, out io.Writer) error {
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	router.AddMiddleware(settings.Middleware)
	subscriber, err := amqp.NewSubscriber(conf, logger)
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
