// Forwarder shows Watermill's forwarder, as outboxes use it, on the retrier: an envelope that cannot be forwarded is
// retried, and ends as a dead letter. Look at
//
//   - forward: the forwarder makes a router of its own, so the middleware goes into its config,
//   - flaky, a destination that refuses some messages.
//
// An outbox keeps its envelopes in the database of the service, such as by watermill-sql. Here they are on RabbitMQ.
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
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/retry"
)

var policies = config.Policies{Default: config.Policy{Delays: []time.Duration{200 * time.Millisecond}}}

// forward moves what is in envelopes to the topics that they name.
func forward(retrier *amqpretry.Retrier, outbox string, destination message.Publisher) (*forwarder.Forwarder, error) {
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return nil, err
	}

	return forwarder.NewForwarder(subscriber, destination, watermill.NopLogger{}, forwarder.Config{
		ForwarderTopic: outbox,
		Middlewares:    []message.HandlerMiddleware{retrier.Middleware},
	})
}

// flaky is a publisher that refuses order-1 once, and order-2 always.
type flaky struct {
	out     io.Writer
	refused map[string]int
	mu      sync.Mutex
}

func (f *flaky) Publish(topic string, messages ...*message.Message) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, msg := range messages {
		if f.refused[msg.UUID]++; msg.UUID == "order-2" || f.refused[msg.UUID] == 1 {
			fmt.Fprintf(f.out, "%s: not forwarded\n", msg.UUID)
			return errors.New("the other broker does not answer")
		}
		fmt.Fprintf(f.out, "%s: forwarded to %s\n", msg.UUID, topic)
	}

	return nil
}

func (f *flaky) Close() error { return nil }

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
	outbox := "outbox-" + watermill.NewShortUUID()

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var ended atomic.Int64
	report := func(e retry.Event) {
		if e.Kind == retry.EventDeadLettered {
			fmt.Fprintf(out, "an envelope: dead letter, %s: %v\n", e.Verdict.Reason, e.Err)
		}
		// The program ends with the second envelope.
		if (e.Kind == retry.EventSucceeded || e.Kind == retry.EventDeadLettered) && ended.Add(1) == 2 {
			stop()
		}
	}
	retrier, err := amqpretry.New(conf, amqpretry.Options{Policies: policies, Logger: logger, OnEvent: report})
	if err != nil {
		return err
	}
	defer retrier.Close()
	defer tidy.Up(uri, retrier, outbox) // no service deletes its queues
	f, err := forward(retrier, outbox, &flaky{out: out, refused: map[string]int{}})
	if err != nil {
		return err
	}

	publisher, err := amqp.NewPublisher(conf, logger)
	if err != nil {
		return err
	}
	defer publisher.Close()
	sender := forwarder.NewPublisher(publisher, forwarder.PublisherConfig{ForwarderTopic: outbox})
	go func() {
		select {
		case <-f.Running(): // from then on the queue exists
			_ = sender.Publish("orders", message.NewMessage("order-1", nil), message.NewMessage("order-2", nil))
		case <-ctx.Done():
		}
	}()

	return f.Run(ctx)
}
