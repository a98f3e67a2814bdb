// Quickstart shows the life of messages under a retry policy: some succeed, some fail twice and
// then succeed, one never does, and one cannot be decoded. At the end it prints the dead letters.
// Look at
//
//   - ship, the handler,
//   - run: the policy, and the lines with the retrier.
//
// "make demo" runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI")); err != nil {
		log.Fatal(err)
	}
}

// order is the body of a message. FailuresLeft says how its handler is to fail: that often, for
// ever below zero.
type order struct {
	ID       string `json:"id"`
	Failures int    `json:"failures"`
}

// bodies of the messages that are published.
var bodies = []string{
	`{"id":"order-1"}`,
	`{"id":"order-2","failures":2}`,
	`{"id":"order-3"}`,
	`{"id":"order-4","failures":-1}`,
	`{"id":"order-5","failures":2}`,
	`order-6 is not JSON`,
}

func run(ctx context.Context, uri string) error {
	topic := "quickstart-" + watermill.NewShortUUID()

	// A message fails up to three times: at once, after 1 s and after 2 s more. Then it is a dead
	// letter.
	policies := config.Policies{
		Topics: map[string]config.Policy{
			topic: {Delays: []time.Duration{time.Second, 2 * time.Second}},
		},
	}

	conf := amqp.NewDurableQueueConfig(uri)
	conf.Marshaler = jsonMarshaler{}
	conf.Consume.Qos.PrefetchCount = 10

	logger := watermill.NopLogger{} // this program prints what happens; a service logs it

	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Policies: policies, OnEvent: demo.CloseAfter(router, len(bodies)), Logger: logger,
	})
	if err != nil {
		return err
	}
	defer retrier.Close()
	defer demo.Tidy(uri, retrier, topic) // no service deletes its queues
	router.AddMiddleware(retrier.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	router.AddConsumerHandler("ship", topic, subscriber, ship)

	if err := publish(retrier, subscriber, topic); err != nil {
		return err
	}
	start = time.Now()
	if err := router.Run(ctx); err != nil || ctx.Err() != nil {
		return err
	}

	return deadLetters(uri, topic+".dlq", 2)
}

// publish sends the orders, once the queue exists.
func publish(retrier *amqpv2.Retrier, subscriber message.SubscribeInitializer, topic string) error {
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return err
	}
	publisher, err := retrier.NewPublisher()
	if err != nil {
		return err
	}
	for _, body := range bodies {
		if err := publisher.Publish(topic, message.NewMessage(watermill.NewUUID(), []byte(body))); err != nil {
			return err
		}
	}

	return nil
}

// ship is the handler: it fails as often as the order says, or always.
func ship(msg *message.Message) error {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return retry.Permanent(err)
	}
	attempt, _ := retry.AttemptFromContext(msg.Context())
	var err error
	outcome := "shipped"
	if o.Failures < 0 || attempt.Failures < o.Failures {
		err = errors.New("the warehouse does not answer")
		outcome = "failed: " + err.Error()
	}
	fmt.Printf("%5.1fs  %s  attempt %d of %d  %s\n", time.Since(start).Seconds(), o.ID, attempt.Number,
		attempt.MaxRetries+1, outcome)

	return err
}

// start is when the service began.
var start time.Time

// jsonMarshaler is a marshaler that rejects what is not JSON.
type jsonMarshaler struct{ amqp.DefaultMarshaler }

func (m jsonMarshaler) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if !json.Valid(d.Body) {
		return nil, errors.New("the body is not JSON")
	}

	return m.DefaultMarshaler.Unmarshal(d)
}

// shown are those of a dead letter's headers that say most. docs/reference/topology.md has all.
var shown = []string{"amqpretry-reason", "amqpretry-error", "amqpretry-attempts", "amqpretry-first-failure",
	"amqpretry-last-failure"}

// deadLetters prints the first n messages of a dead-letter queue, and leaves them there.
func deadLetters(uri, queue string, n int) error {
	conn, err := amqp091.Dial(uri)
	if err != nil {
		return err
	}
	defer conn.Close()

	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}

	fmt.Printf("\n%s:\n", queue)
	for range n {
		d := <-deliveries
		fmt.Printf("\n  %s\n", d.Body)
		for _, key := range shown {
			fmt.Printf("    %-24s %v\n", key, d.Headers[key])
		}
	}

	return nil // what was not acknowledged goes back when the connection closes
}
