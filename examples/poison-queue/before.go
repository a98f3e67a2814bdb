package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// before is the service as it was. The warehouse is closed, so it poisons the order at its first
// failure.
func before(ctx context.Context, conf amqp.Config, topic string, out io.Writer) error {
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(conf, logger)
	if err != nil {
		return err
	}
	defer publisher.Close()
	poisonQueue, err := middleware.PoisonQueue(publisher, topic+poison)
	if err != nil {
		return err
	}
	router.AddMiddleware(poisonQueue)
	subscriber, err := amqp.NewSubscriber(conf, logger)
	if err != nil {
		return err
	}
	// PoisonQueue publishes, but nobody has declared the queue of its topic: without this the
	// message would be lost.
	if err := subscriber.SubscribeInitialize(topic + poison); err != nil {
		return err
	}
	router.AddConsumerHandler("ship", topic, subscriber, func(msg *message.Message) error {
		fmt.Fprintf(out, "%s: before: failed and poisoned\n", msg.UUID)
		// The program goes on when the message is acknowledged. A stock subscriber that closes
		// earlier gives it back.
		time.AfterFunc(time.Second, func() { _ = router.Close() })

		return errors.New("the warehouse is closed")
	})
	if err := publish(conf, subscriber, topic, "order-1"); err != nil {
		return err
	}

	return router.Run(ctx)
}
