// Adoption shows an existing queue on its way to retries and back. Look at
//
//   - steps: the policies in the order in which they go out to every consumer of the queue,
//   - forOperators: what an operator gets for a quorum queue, and for a broker on which services
//     may declare nothing.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/retry"
)

var retries = config.Policy{Delays: []time.Duration{100 * time.Millisecond}}

var steps = []struct {
	name, order string
	policy      config.Policy
}{
	{"off", "an old order", config.Policy{Mode: config.ModeOff}},
	{"retries", "a new order", retries},
	{"off again", "a last order", config.Policy{Mode: config.ModeOff}},
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
	topic := "orders-" + watermill.NewShortUUID()
	defer tidy.Topic(uri, topic, retries) // no service deletes its queues

	for _, step := range steps {
		if err := publish(conf, topic, step.order); err != nil {
			return err
		}
		failed := false
		ship := func(msg *message.Message, done func()) error {
			if !failed {
				failed = true
				return errors.New("not yet")
			}
			attempt, counted := retry.AttemptFromContext(msg.Context())
			fmt.Fprintf(out, "%s: %s failed once; attempt %d, counted: %t\n", step.name, msg.UUID, attempt.Number,
				counted)
			done()

			return nil
		}
		if err := serve(ctx, conf, topic, step.policy, ship); err != nil || ctx.Err() != nil {
			return err
		}
	}

	return forOperators(conf, out)
}

// forOperators prints what an operator does for a quorum queue that exists, and for services that
// may declare nothing.
func forOperators(conf amqp.Config, out io.Writer) error {
	conf.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum"}
	retrier, err := amqpv2.New(conf, amqpretry.Options{AssumeTopology: true})
	if err != nil {
		return err
	}
	defer retrier.Close()

	policy, err := retrier.ProtectPolicy("orders.eu")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "policy for %s: %s\n", policy.Pattern, policy.Definition)

	file, err := retrier.Definitions("orders.eu", "payments")
	if err != nil {
		return err
	}
	var definitions map[string][]any
	if err := json.Unmarshal(file, &definitions); err != nil {
		return err
	}
	fmt.Fprintf(out, "definitions: %d exchanges, %d queues, %d bindings\n",
		len(definitions["exchanges"]), len(definitions["queues"]), len(definitions["bindings"]))

	return nil
}

// serve runs one version of the service until its handler has called done, or ctx ends.
func serve(
	ctx context.Context, conf amqp.Config, topic string, policy config.Policy,
	ship func(*message.Message, func()) error,
) error {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Policies: config.Policies{Default: policy}, Logger: watermill.NopLogger{},
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
	done := func() { go router.Close() }
	router.AddConsumerHandler("ship", topic, subscriber, func(msg *message.Message) error { return ship(msg, done) })

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
