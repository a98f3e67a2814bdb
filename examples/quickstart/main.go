// Quickstart shows the life of messages under a retry policy: some succeed, some fail twice and then succeed, one never
// does, and one cannot be decoded. At the end it prints what lies in the dead-letter queue.
//
//	make demo
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/internal/play"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() { play.Main(run) }

// order is the body of a message. FailuresLeft says how its handler is to fail: that often, for ever below zero.
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

func run(ctx context.Context, uri string, out io.Writer) error {
	p, topic := &printer{out: out}, "quickstart-"+watermill.NewShortUUID()

	// A message fails up to three times: at once, after 1 s and after 2 s more. Then it is a dead letter.
	policies := config.Policies{
		Topics: map[string]config.Policy{
			topic: {Delays: []time.Duration{time.Second, 2 * time.Second}},
		},
	}

	var finished sync.WaitGroup // one for each message: handled, or dead

	conf := amqp.NewDurableQueueConfig(uri)
	conf.Marshaler = jsonMarshaler{}
	conf.Consume.Qos.PrefetchCount = 10
	conf.Publish.ConfirmDelivery = true

	options := amqpretry.Options{
		Logger:   watermill.NopLogger{}, // it prints what happens; a service leaves this out, and finds it in its logs
		Policies: policies,
		OnEvent: func(e retry.Event) {
			if e.Kind == retry.EventDeadLettered {
				finished.Done()
			}
		},
	}
	defer play.Remove(uri, options, topic)
	retrier, err := amqpretry.New(conf, options)
	if err != nil {
		return err
	}
	defer retrier.Close()

	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddMiddleware(retrier.Middleware)

	router.AddConsumerHandler("ship", topic, subscriber, ship(p, finished.Done))

	publisher, err := amqp.NewPublisher(retrier.Config(), watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer publisher.Close()

	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-stopped:
		return err
	}

	finished.Add(len(bodies))
	p.start = time.Now()
	for _, body := range bodies {
		if err := publisher.Publish(topic, message.NewMessage(watermill.NewUUID(), []byte(body))); err != nil {
			return err
		}
	}
	waited := play.Wait(ctx, &finished)

	if err := router.Close(); err != nil {
		return err
	}
	if err := errors.Join(waited, <-stopped); err != nil {
		return err
	}

	return p.deadLetters(uri, topic+".dlq", 2)
}

// ship returns the handler: it fails as often as the order says, or always.
func ship(p *printer, shipped func()) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		var o order
		if err := json.Unmarshal(msg.Payload, &o); err != nil {
			return retry.Permanent(err)
		}
		attempt, _ := retry.AttemptFromContext(msg.Context())

		if o.Failures < 0 || attempt.Failures < o.Failures {
			err := errors.New("the warehouse does not answer")
			p.attempt(o.ID, attempt, "failed: "+err.Error())

			return err
		}
		p.attempt(o.ID, attempt, "shipped")
		shipped()

		return nil
	}
}

// jsonMarshaler is a marshaler that rejects what is not JSON.
type jsonMarshaler struct{ amqp.DefaultMarshaler }

func (m jsonMarshaler) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if !json.Valid(d.Body) {
		return nil, errors.New("the body is not JSON")
	}

	return m.DefaultMarshaler.Unmarshal(d)
}

// printer prints what happens, from any goroutine.
type printer struct {
	mu    sync.Mutex
	out   io.Writer
	start time.Time
}

func (p *printer) attempt(id string, a retry.Attempt, outcome string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	fmt.Fprintf(p.out, "%5.1fs  %s  attempt %d of %d  %s\n", time.Since(p.start).Seconds(), id, a.Number, a.MaxRetries+
		1, outcome)
}

// shown are those of a dead letter's headers that say most. docs/reference/topology.md has all.
var shown = []string{"amqpretry-reason", "amqpretry-error", "amqpretry-attempts", "amqpretry-first-failure",
	"amqpretry-last-failure"}

// deadLetters prints the first n messages of a dead-letter queue, and leaves them there.
func (p *printer) deadLetters(uri, queue string, n int) error {
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

	fmt.Fprintf(p.out, "\n%s:\n", queue)
	for range n {
		d := <-deliveries
		fmt.Fprintf(p.out, "\n  %s\n", d.Body)
		for _, key := range shown {
			fmt.Fprintf(p.out, "    %-24s %v\n", key, d.Headers[key])
		}
	}

	return nil // what was not acknowledged goes back when the connection closes
}
