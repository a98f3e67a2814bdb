// Retry-middleware shows a service on its way from Watermill's Retry middleware to retries on the
// broker. Look at
//
//   - before.go, the service as it was: while Retry sleeps, the orders behind wait,
//   - after.go, the service with the retrier: they go on; and policyOf, which translates the
//     settings.
package main

import (
	"context"
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
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/amqpretry/watermill-retry/examples/tidy"
)

var settings = middleware.Retry{MaxRetries: 2, InitialInterval: 300 * time.Millisecond, Multiplier: 2}

// ship is the handler. It fails twice for order-1.
type ship struct {
	out           io.Writer
	calls, orders int
	done          func()
}

func (s *ship) handle(msg *message.Message) error {
	if msg.UUID == "order-1" {
		if s.calls++; s.calls <= 2 {
			fmt.Fprintf(s.out, "%s: call %d, failed\n", msg.UUID, s.calls)
			return errors.New("the warehouse does not answer")
		}
	}
	s.orders++
	fmt.Fprintf(s.out, "%s: shipped, as number %d\n", msg.UUID, s.orders)
	if s.orders == 2 {
		s.done() // the program ends with the second order
	}

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
	for _, version := range []struct {
		name  string
		serve func(context.Context, amqp.Config, string, io.Writer) error
	}{{"before", before}, {"after", after}} {
		topic := "orders-" + watermill.NewShortUUID()
		fmt.Fprintln(out, version.name)
		err := version.serve(ctx, conf, topic, out)
		tidy.Topic(uri, topic, policyOf(settings)) // no service deletes its queues
		if err != nil || ctx.Err() != nil {
			return err
		}
	}

	return nil
}

// publish sends a message for each id, once the queue exists.
func publish(conf amqp.Config, subscriber message.SubscribeInitializer, topic string, ids ...string) error {
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(conf, watermill.NopLogger{})
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
