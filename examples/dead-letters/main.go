// Dead-letters shows a handler for dead letters in the router of the service itself: an archive.
// Look at
//
//   - file, the handler: it knows why each message has failed,
//   - run: NewDeadLetterSubscriber feeds it. The topic is that of the messages.
package main

import (
	"context"
	"encoding/json"
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
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/retry"
)

var policies = config.Policies{Default: config.Policy{Delays: []time.Duration{100 * time.Millisecond}}}

// order is the body of a message.
type order struct{ Customer string }

// ship is the handler of the messages.
func ship(msg *message.Message) error {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return retry.Permanent(fmt.Errorf("no order: %w", err))
	}

	return errors.New("the warehouse does not answer")
}

// file is the handler of the dead letters. A success takes a dead letter out of its queue. A
// failure leaves it there, and file gets it again after a pause.
func file(msg *message.Message) error {
	letter, _ := retry.DeadLetterFromContext(msg.Context())
	fmt.Printf("%s: %s after %d calls of %q: %s\n", msg.UUID, letter.Reason, letter.Calls, letter.Handler, letter.Error)
	for _, failed := range letter.History {
		fmt.Printf("%s:   call %d: %s\n", msg.UUID, failed.Number, failed.Error)
	}

	return nil
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
	topic := "orders-" + watermill.NewShortUUID()

	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	retrier, err := amqpv2.New(conf, amqpretry.Options{Policies: policies, Logger: logger})
	if err != nil {
		return err
	}
	defer retrier.Close()
	defer demo.Tidy(uri, retrier, topic) // no service deletes its queues
	router.AddMiddleware(retrier.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	deadLetters, err := retrier.NewDeadLetterSubscriber()
	if err != nil {
		return err
	}
	router.AddConsumerHandler("ship", topic, subscriber, ship)

	// The program ends with the second dead letter.
	var filed atomic.Int64
	router.AddConsumerHandler("file", topic, deadLetters, func(msg *message.Message) error {
		defer func() {
			if filed.Add(1) == 2 {
				go router.Close()
			}
		}()

		return file(msg)
	})

	publisher, err := retrier.NewPublisher()
	if err != nil {
		return err
	}
	err = errors.Join(subscriber.SubscribeInitialize(topic), publisher.Publish(topic,
		message.NewMessage("order-1", []byte(`not JSON`)),
		message.NewMessage("order-2", []byte(`{"Customer":"ann"}`))))
	if err != nil {
		return err
	}

	return router.Run(ctx)
}
