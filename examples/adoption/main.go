// Adoption shows an existing queue on its way: a service without the library, policy "off", a policy with retries, and
// back; and what an operator is given for a quorum queue, and for a broker on which services may declare nothing.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/internal/play"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() { play.Main(run) }

func run(ctx context.Context, uri string, to io.Writer) error {
	out, topic := play.To(to), "orders-"+watermill.NewShortUUID()
	conf := amqp.NewDurableQueueConfig(uri)

	// Policies, in the order in which they go out to every consumer of the queue.
	off := config.Policy{Mode: config.ModeOff}
	retries := config.Policy{Delays: []time.Duration{100 * time.Millisecond}}
	defer play.Remove(uri, amqpretry.Options{Policies: config.Policies{Default: retries}}, topic)

	// A service that knows nothing of the library has declared the queue, and left a message in it.
	stock, err := amqp.NewSubscriber(conf, watermill.NopLogger{})
	if err != nil {
		return err
	}
	if err := stock.SubscribeInitialize(topic); err != nil {
		return err
	}
	if err := stock.Close(); err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(conf, watermill.NopLogger{})
	if err != nil {
		return err
	}
	err = publisher.Publish(topic, message.NewMessage("an old order", nil))
	if err = errors.Join(err, publisher.Close()); err != nil {
		return err
	}

	for _, step := range []struct {
		name     string
		policy   config.Policy
		messages []play.Message
	}{
		{"off", off, []play.Message{{Topic: topic, ID: "an old order", IsThere: true}}},
		{"retries", retries, []play.Message{{Topic: topic, ID: "a new order"}}},
		{"off again", off, []play.Message{{Topic: topic, ID: "a last order"}}},
	} {
		failed := false
		handler := func(msg *message.Message) error {
			if !failed {
				failed = true
				return errors.New("not yet")
			}
			attempt, counted := retry.AttemptFromContext(msg.Context())
			out.Printf("%s: %s failed once; attempt %d, counted: %t\n", step.name, msg.UUID, attempt.Number, counted)

			return nil
		}
		options := amqpretry.Options{Policies: config.Policies{Default: step.policy}}
		if err := play.Run(ctx, uri, out, options, play.Handlers{topic: handler}, step.messages...); err != nil {
			return err
		}
	}

	return forOperators(uri, out)
}

// forOperators prints what an operator does for a quorum queue that exists, and for services that may declare nothing.
func forOperators(uri string, out *play.Writer) error {
	conf := amqp.NewDurableQueueConfig(uri)
	conf.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum"}
	retrier, err := amqpretry.New(conf, amqpretry.Options{Topology: topology.Assume})
	if err != nil {
		return err
	}
	defer retrier.Close()

	policy, err := retrier.ProtectPolicy("orders.eu")
	if err != nil {
		return err
	}
	out.Printf("policy for %s: %s\n", policy.Pattern, policy.Definition)

	file, err := retrier.Definitions("orders.eu", "payments")
	if err != nil {
		return err
	}
	var definitions map[string][]any
	if err := json.Unmarshal(file, &definitions); err != nil {
		return err
	}
	out.Printf("definitions: %d exchanges, %d queues, %d bindings\n",
		len(definitions["exchanges"]), len(definitions["queues"]), len(definitions["bindings"]))

	return nil
}
