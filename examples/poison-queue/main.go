// Poison-queue shows a service on its way from Watermill's PoisonQueue to retries and a dead-letter
// queue. Look at
//
//   - before.go, the service as it was: what fails goes to the poison topic,
//   - after.go, the service with the retrier; its handler "bring back" moves what is left in the
//     poison topic.
package main

import (
	"context"
	"io"
	"log"
	"os"
	"os/signal"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/examples/tidy"
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
	topic := "orders-" + watermill.NewShortUUID()
	defer tidy.Topic(uri, topic) // no service deletes its queues
	defer tidy.Topic(uri, topic+poison)

	if err := before(ctx, conf, topic, out); err != nil || ctx.Err() != nil {
		return err
	}

	return after(ctx, conf, topic, out)
}

// poison ends the name of the poison topic.
const poison = ".poison"

// publish sends an order, once the queue exists.
func publish(conf amqp.Config, subscriber message.SubscribeInitializer, topic, id string) error {
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(conf, watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer publisher.Close()

	return publisher.Publish(topic, message.NewMessage(id, []byte(id)))
}
