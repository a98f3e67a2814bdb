// Replay shows package dlq in a program. Look at
//
//   - look, which browses and counts dead letters and takes none out,
//   - replay, which sends back those that an outage has failed, one of them changed on its way.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/retry"
)

var policy = config.Policy{Delays: []time.Duration{100 * time.Millisecond}}

func look(ctx context.Context, queue *dlq.Queue, out io.Writer) error {
	for letter, err := range queue.Browse(ctx, dlq.Filter{}) {
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %s, %s\n", letter.UUID, letter.Reason, letter.Error)
	}
	stat, err := queue.Stat(ctx, dlq.Filter{Reasons: []retry.Reason{retry.ReasonExhausted}})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d of %d are exhausted\n", stat.Matched, stat.Seen)

	return nil
}

// replay loses nothing: a letter leaves the dead-letter queue when the broker has confirmed its
// copy, and the undo file, here a buffer, has all of them as they were.
func replay(ctx context.Context, queue *dlq.Queue, out io.Writer) error {
	var undo bytes.Buffer
	report, err := queue.Run(ctx, dlq.Plan{
		Kind:   dlq.Replay,
		Filter: dlq.Filter{ErrorContains: "warehouse"},
		Rate:   100, // a second
		Undo:   &undo,
		By:     "ann@example.com",
		Edit: func(p *amqp091.Publishing) error {
			if bytes.Equal(p.Body, []byte("order-3")) {
				p.Body = []byte("order-3, by express")
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d of %d replayed, %d in the undo file\n", report.Done, report.Matched,
		bytes.Count(undo.Bytes(), []byte("\n")))

	return nil
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
	orders := "orders-" + watermill.NewShortUUID()
	defer tidy.Topic(uri, orders, policy) // no service deletes its queues
	for _, id := range []string{"order-1", "order-2", "order-3"} {
		if err := publish(conf, orders, id); err != nil {
			return err
		}
	}

	// The outage: three orders fail.
	fail := func(msg *message.Message) error {
		if msg.UUID == "order-2" {
			return retry.Permanent(errors.New("no such customer"))
		}
		return errors.New("the warehouse does not answer")
	}
	if err := serve(ctx, conf, orders, 3, fail); err != nil || ctx.Err() != nil {
		return err
	}

	// Before RabbitMQ 4.3 somebody must tell that no policy limits the deliveries of dead letters:
	// the management API, or this field.
	client, err := dlq.Open(ctx, dlq.Config{URI: uri, NoDeliveryLimitPolicy: true})
	if err != nil {
		return err
	}
	defer client.Close()
	queue := client.Queue(orders) // its dead-letter queue, by the name of the main queue
	if err := errors.Join(look(ctx, queue, out), replay(ctx, queue, out)); err != nil {
		return err
	}

	// The service after the outage.
	return serve(ctx, conf, orders, 2, func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		fmt.Fprintf(out, "%s: shipped %q in attempt %d after %d calls in its last life\n", msg.UUID, msg.Payload,
			attempt.Number, attempt.Calls)
		return nil
	})
}

// serve runs the service until n messages have come to their end, or ctx ends.
func serve(ctx context.Context, conf amqp.Config, topic string, n int64, handler message.NoPublishHandlerFunc) error {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	var ended atomic.Int64
	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Policies: config.Policies{Default: policy}, Logger: watermill.NopLogger{},
		OnEvent: func(event retry.Event) {
			done := event.Kind == retry.EventSucceeded || event.Kind == retry.EventDeadLettered
			if done && ended.Add(1) == n {
				go router.Close()
			}
		},
	})
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
	router.AddConsumerHandler("ship", topic, subscriber, handler)

	return router.Run(ctx)
}

// publish is a stock service: it declares the queue and sends an order.
func publish(conf amqp.Config, topic, id string) error {
	subscriber, err := amqp.NewSubscriber(conf, watermill.NopLogger{})
	if err != nil {
		return err
	}
	if err := errors.Join(subscriber.SubscribeInitialize(topic), subscriber.Close()); err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(conf, watermill.NopLogger{})
	if err != nil {
		return err
	}

	return errors.Join(publisher.Publish(topic, message.NewMessage(id, []byte(id))), publisher.Close())
}
