// Fanout shows one event and three services that each get it. Look at
//
//   - serve: NewDurablePubSubConfig gives each service a queue of its own, and the retrier gives
//     each queue its retries,
//   - mails, the service that fails: its retries come to its queue only, so that the others see the
//     event once.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sync"
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

var policies = config.Policies{Default: config.Policy{Delays: []time.Duration{200 * time.Millisecond}, Retries: 2}}

// services by their names.
var services = map[string]message.NoPublishHandlerFunc{
	"stock":   func(*message.Message) error { return nil },
	"reports": func(*message.Message) error { return nil },
	"mails":   func(*message.Message) error { return errors.New("the mail server does not answer") },
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string, out io.Writer) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	topic := "order-shipped-" + watermill.NewShortUUID()
	defer tidy.Exchanges(uri, topic)

	var ready, running sync.WaitGroup
	for name, handler := range services {
		ready.Add(1)
		running.Go(func() {
			// In real life, each is a process of its own.
			if err := serve(ctx, uri, name, topic, handler, ready.Done, out); err != nil {
				stop(err)
			}
		})
	}
	go func() {
		ready.Wait()
		if err := publish(uri, topic, "event-1"); err != nil {
			stop(err)
		}
	}()
	running.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}

	return nil
}

// serve runs a service until its message has come to its end. It calls ready when its queue exists.
func serve(
	ctx context.Context, uri, name, topic string, handler message.NoPublishHandlerFunc, ready func(), out io.Writer,
) error {
	conf := amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(name))
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Policies: policies, OnEvent: untilDone(router, name, out), Logger: logger,
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
	router.AddConsumerHandler(name, topic, subscriber, handler)
	go func() {
		select {
		case <-router.Running():
			ready()
		case <-ctx.Done():
		}
	}()

	return router.Run(ctx)
}

// untilDone prints how a message ends, and closes the router then.
func untilDone(router *message.Router, name string, out io.Writer) func(retry.Event) {
	return func(event retry.Event) {
		switch event.Kind {
		case retry.EventSucceeded:
			fmt.Fprintf(out, "%s: done with %s, calls: %d\n", name, event.Message.UUID, event.Calls)
		case retry.EventDeadLettered:
			fmt.Fprintf(out, "%s: %s is a dead letter, calls: %d\n", name, event.Message.UUID, event.Calls)
		default:
			return
		}
		go router.Close()
	}
}

// publish sends an event to all services.
func publish(uri, topic, id string) error {
	publisher, err := amqp.NewPublisher(amqp.NewDurablePubSubConfig(uri, nil), watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer publisher.Close()

	return publisher.Publish(topic, message.NewMessage(id, nil))
}
