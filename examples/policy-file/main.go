// Policy-file reads its policies from a file:
//
//	scripts/broker run --private go run ./examples/policy-file
//
// Look at retry.yaml beside this file, and at the first lines of run.
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

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config/policyfile"
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/retry"
)

const file = "examples/policy-file/retry.yaml"

// handle is the handler of all topics.
func handle(out io.Writer) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		fmt.Fprintf(out, "%s: attempt %d\n", msg.UUID, attempt.Number)
		if msg.UUID == "template" {
			return &fs.PathError{Op: "open", Path: "invoice.tmpl", Err: fs.ErrNotExist}
		}

		return errors.New("the bank does not answer")
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI"), file, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri, file string, out io.Writer) error {
	policies, err := policyfile.Load(file)
	if err != nil {
		return err // has everything that is wrong in the file, with lines
	}
	for _, topic := range []string{"orders.eu", "mails.eu", "orders.audit"} {
		fmt.Fprintf(out, "%s: %v\n", topic, policies.For(topic).Schedule())
	}

	conf := amqp.NewDurableQueueConfig(uri)
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	id := watermill.NewShortUUID()
	orders, mails, audit := "orders."+id, "mails."+id, id+".audit"

	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Policies: policies, OnEvent: untilDone(router, 4, out), Logger: logger,
	})
	if err != nil {
		return err
	}
	defer retrier.Close()
	defer tidy.Up(uri, retrier, orders, mails, audit) // no service deletes its queues
	router.AddMiddleware(retrier.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	for topic, ids := range map[string][]string{orders: {"order", "template"}, mails: {"mail"}, audit: {"audit"}} {
		router.AddConsumerHandler(topic, topic, subscriber, handle(out))
		if err := publish(retrier, subscriber, topic, ids...); err != nil {
			return err
		}
	}

	return router.Run(ctx)
}

// untilDone prints the end of each message, and closes the router after the last of n.
func untilDone(router *message.Router, n int64, out io.Writer) func(retry.Event) {
	var ended atomic.Int64

	return func(event retry.Event) {
		switch event.Kind {
		case retry.EventSucceeded:
		case retry.EventDeadLettered:
			fmt.Fprintf(out, "%s: dead letter, %s, calls: %d\n", event.Message.UUID, event.Verdict.Reason, event.Calls)
		default:
			return
		}
		if ended.Add(1) == n {
			go router.Close()
		}
	}
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
	defer publisher.Close()
	for _, id := range ids {
		if err := publisher.Publish(topic, message.NewMessage(id, []byte(id))); err != nil {
			return err
		}
	}

	return nil
}
