// Existing-router shows what it takes to give a router that was there before retries and a dead-letter queue: the three
// lines marked with "new", and the subscriber that is made from them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/examples/internal/play"
)

func main() { play.Main(run) }

func run(ctx context.Context, uri string, out io.Writer) error {
	topic := "payments-" + watermill.NewShortUUID()
	defer play.Remove(uri, amqpretry.Options{}, topic) // not in a service

	logger := watermill.NopLogger{}
	conf := amqp.NewDurableQueueConfig(uri)

	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}

	retrier, err := amqpretry.New(conf, amqpretry.Options{Logger: logger}) // new
	if err != nil {
		return err
	}
	defer retrier.Close()                      // new: after the router
	router.AddMiddleware(retrier.Middleware)   // new: before all others
	router.AddMiddleware(middleware.Recoverer) // as it was

	subscriber, err := retrier.NewSubscriber() // was: amqp.NewSubscriber(conf, logger)
	if err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(conf, logger) // as it was
	if err != nil {
		return err
	}
	defer publisher.Close()

	var calls atomic.Int32
	done := make(chan struct{})
	router.AddConsumerHandler("charge", topic, subscriber, func(msg *message.Message) error {
		if n := calls.Add(1); n < 2 {
			fmt.Fprintf(out, "call %d: the bank is closed\n", n)
			return errors.New("the bank is closed")
		}
		fmt.Fprintf(out, "call %d: %s\n", calls.Load(), msg.Payload)
		close(done)

		return nil
	})

	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-stopped:
		return err
	}

	if err := publisher.Publish(topic, message.NewMessage(watermill.NewUUID(), []byte("42 EUR"))); err != nil {
		return err
	}
	select {
	case <-done:
	case <-ctx.Done():
	}

	if err := router.Close(); err != nil {
		return err
	}

	return <-stopped
}
