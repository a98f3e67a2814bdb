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
	"io/fs"
	"log"
	"os"
	"os/signal"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config/policyfile"
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/retry"
)

const file = "examples/policy-file/retry.yaml"

// handle is the handler of all topics.
func handle(msg *message.Message) error {
	attempt, _ := retry.AttemptFromContext(msg.Context())
	fmt.Printf("%s: attempt %d\n", msg.UUID, attempt.Number)
	if msg.UUID == "template" {
		return &fs.PathError{Op: "open", Path: "invoice.tmpl", Err: fs.ErrNotExist}
	}

	return errors.New("the bank does not answer")
}

// report prints the end of each message.
func report(event retry.Event) {
	if event.Kind == retry.EventDeadLettered {
		fmt.Printf("%s: dead letter, %s, calls: %d\n", event.Message.UUID, event.Verdict.Reason, event.Calls)
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string) error {
	policies, err := policyfile.Load(file)
	if err != nil {
		return err // has everything that is wrong in the file, with lines
	}
	for _, topic := range []string{"orders.eu", "mails.eu", "orders.audit"} {
		fmt.Printf("%s: %v\n", topic, policies.For(topic).Schedule())
	}

	conf := amqp.NewDurableQueueConfig(uri)
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	id := watermill.NewShortUUID()
	orders, mails, audit := "orders."+id, "mails."+id, id+".audit"

	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	done := demo.CloseAfter(router, 4)
	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Policies: policies, Logger: logger,
		OnEvent: func(event retry.Event) {
			report(event)
			done(event)
		},
	})
	if err != nil {
		return err
	}
	defer retrier.Close()
	defer demo.Tidy(uri, retrier, orders, mails, audit) // no service deletes its queues
	router.AddMiddleware(retrier.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	publisher, err := retrier.NewPublisher()
	if err != nil {
		return err
	}
	for topic, ids := range map[string][]string{orders: {"order", "template"}, mails: {"mail"}, audit: {"audit"}} {
		router.AddConsumerHandler(topic, topic, subscriber, handle)
		if err := demo.Publish(publisher, subscriber, topic, ids...); err != nil {
			return err
		}
	}

	return router.Run(ctx)
}
