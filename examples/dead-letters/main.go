// Dead-letters shows a handler that is fed from a dead-letter queue, in the router of the service itself: an archive
// that is told why each message has failed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/internal/play"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() { play.Main(run) }

// order is what the messages carry.
type order struct{ Customer string }

func run(ctx context.Context, uri string, to io.Writer) error {
	out, topic := play.To(to), "orders-"+watermill.NewShortUUID()

	conf := amqp.NewDurableQueueConfig(uri)
	conf.Publish.ConfirmDelivery = true
	options := amqpretry.Options{
		Logger:   watermill.NopLogger{}, // the example prints what happens
		Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{100 * time.Millisecond}}},
	}
	defer play.Remove(uri, options, topic)
	retrier, err := amqpretry.New(conf, options)
	if err != nil {
		return err
	}
	defer retrier.Close()
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	deadLetters, err := retrier.NewDeadLetterSubscriber()
	if err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(retrier.Config(), watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer publisher.Close()

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddMiddleware(retrier.Middleware)

	router.AddConsumerHandler("ship", topic, subscriber, func(msg *message.Message) error {
		var o order
		if err := json.Unmarshal(msg.Payload, &o); err != nil {
			return retry.Permanent(fmt.Errorf("no order: %w", err))
		}

		return errors.New("the warehouse does not answer")
	})

	// The topic is that of the messages. What this handler has filed is out of the dead-letter queue; what it fails to
	// file stays there, and is handed out again after a pause.
	var filed sync.WaitGroup
	filed.Add(2)
	router.AddConsumerHandler("file", topic, deadLetters, func(msg *message.Message) error {
		letter, _ := retry.DeadLetterFromContext(msg.Context())
		out.Printf("%s: %s after %d calls of %q: %s\n", msg.UUID, letter.Reason, letter.Calls, letter.Handler,
			letter.Error)
		for _, failed := range letter.History {
			out.Printf("  call %d: %s\n", failed.Number, failed.Error)
		}
		filed.Done()

		return nil
	})

	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-stopped:
		return err
	}

	err = publisher.Publish(topic,
		message.NewMessage("order-1", []byte(`not JSON`)),
		message.NewMessage("order-2", []byte(`{"Customer":"ann"}`)),
	)
	if err != nil {
		return err
	}
	waited := play.Wait(ctx, &filed)
	if err := router.Close(); err != nil {
		return err
	}

	return errors.Join(waited, <-stopped)
}
