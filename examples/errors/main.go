// Errors shows who decides what an error means. Look at
//
//   - bill, the handler: it marks errors as permanent, or drops a message,
//   - NeverRetry, the list of the policy: errors of libraries that know nothing of retries,
//   - decide, a function over all: the service asks it about every failure, and it outranks the
//     list.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/retry"
)

var errNoSuchCustomer = errors.New("no such customer")

var policies = config.Policies{Default: config.Policy{
	Delays:     []time.Duration{200 * time.Millisecond},
	NeverRetry: []config.ErrorMatch{config.Is(errNoSuchCustomer), config.As[*fs.PathError]()},
}}

// bill is the handler.
func bill(msg *message.Message) error {
	switch msg.UUID {
	case "customer", "new-customer":
		return fmt.Errorf("billing: %w", errNoSuchCustomer)
	case "template":
		return &fs.PathError{Op: "open", Path: "invoice.tmpl", Err: fs.ErrNotExist}
	case "duplicate":
		return retry.Drop(errors.New("was billed before"))
	case "forged":
		return retry.Permanent(errors.New("the signature is wrong"))
	}

	return errors.New("the bank does not answer")
}

// decide says what a failure means.
func decide(failure retry.Failure) error {
	if errors.Is(failure.Err, errNoSuchCustomer) && failure.Message.UUID == "new-customer" {
		return retry.Transient(failure.Err) // he may not be there yet
	}

	return failure.Err // what handler and policy say
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string, out io.Writer) error {
	conf := amqp.NewDurableQueueConfig(uri)
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	topic := "errors-" + watermill.NewShortUUID()
	ids := []string{"customer", "new-customer", "template", "duplicate", "forged", "payment"}

	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}

	// The program ends with the last of its messages.
	var left atomic.Int64
	left.Store(int64(len(ids)))
	report := func(event retry.Event) {
		switch event.Kind {
		case retry.EventRetried:
			fmt.Fprintf(out, "%s: %v: try again\n", event.Message.UUID, event.Err)
			return
		case retry.EventDeadLettered:
			fmt.Fprintf(out, "%s: %v: dead letter, %s\n", event.Message.UUID, event.Err, event.Verdict.Reason)
		case retry.EventDropped:
			fmt.Fprintf(out, "%s: %v: dropped\n", event.Message.UUID, event.Err)
		default:
			return
		}
		if left.Add(-1) == 0 {
			go router.Close()
		}
	}

	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Policies: policies, Decide: decide, OnEvent: report, Logger: logger,
	})
	if err != nil {
		return err
	}
	defer retrier.Close()
	defer tidy.Up(uri, retrier, topic) // no service deletes its queues
	router.AddMiddleware(retrier.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	router.AddConsumerHandler("bill", topic, subscriber, bill)

	if err := publish(retrier, subscriber, topic, ids); err != nil {
		return err
	}

	return router.Run(ctx)
}

// publish sends a message for each id, once the queue exists.
func publish(retrier *amqpv2.Retrier, subscriber message.SubscribeInitializer, topic string, ids []string) error {
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return err
	}
	publisher, err := retrier.NewPublisher()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := publisher.Publish(topic, message.NewMessage(id, nil)); err != nil {
			return err
		}
	}

	return nil
}
