// Change shows a policy that changes while messages wait: the new version continues what waits
// under the old one. Look at
//
//   - before and after, the two policies,
//   - the end of run: the retry queues that no policy uses any more. "amqpretry topology prune"
//     deletes them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/retry"
)

var (
	before = config.Policy{Delays: []time.Duration{2 * time.Second, 10 * time.Second}}
	after  = config.Policy{Delays: []time.Duration{500 * time.Millisecond}, Retries: 3}
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string, out io.Writer) error {
	conf := amqp.NewDurableQueueConfig(uri)
	id := watermill.NewShortUUID()
	topic := "orders-" + id
	defer tidy.Topic(uri, topic, before, after) // no service deletes its queues
	if err := publish(conf, topic, "an order"); err != nil {
		return err
	}

	// The old version fails the order once, and ends while it waits.
	old := func(msg *message.Message, done func()) error {
		fmt.Fprintf(out, "old version: attempt %d\n", number(msg))
		done()

		return errors.New("not yet")
	}
	if err := serve(ctx, conf, topic, before, old); err != nil || ctx.Err() != nil {
		return err
	}

	// The new version could have been there before: versions with different policies run side by
	// side.
	now := func(msg *message.Message, done func()) error {
		fmt.Fprintf(out, "new version: attempt %d\n", number(msg))
		if number(msg) < 3 {
			return errors.New("not yet")
		}
		done()

		return nil
	}
	if err := serve(ctx, conf, topic, after, now); err != nil || ctx.Err() != nil {
		return err
	}

	oldPlan, err := topology.New(topic, before, topology.Names{})
	if err != nil {
		return err
	}
	newPlan, err := topology.New(topic, after, topology.Names{})
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, queue := range newPlan.Queues {
		used[queue.Name] = true
	}
	for _, queue := range oldPlan.Queues {
		if !used[queue.Name] {
			fmt.Fprintf(out, "obsolete: %s\n", strings.ReplaceAll(queue.Name, "-"+id, ""))
		}
	}

	return nil
}

func number(msg *message.Message) int {
	attempt, _ := retry.AttemptFromContext(msg.Context())
	return attempt.Number
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
