// Context shows what a handler can know of its message's past, and keeps secrets out of dead
// letters and logs. Look at
//
//   - pay, the handler: number and history of its attempts,
//   - redact, which the options give to errors and to logged payloads.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"regexp"
	"sync/atomic"
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

var policies = config.Policies{Default: config.Policy{Delays: []time.Duration{100 * time.Millisecond}, Retries: 2}}

// pay is the handler. It always fails, once by a panic.
func pay(out io.Writer) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		fmt.Fprintf(out, "pay: attempt %d of %d, last: %t\n", attempt.Number, attempt.MaxRetries+1, attempt.Last)
		for _, failed := range attempt.History {
			fmt.Fprintf(out, "pay:   call %d: %s\n", failed.Number, failed.Error)
		}
		if attempt.Number == 2 {
			panic("no connection for 4000123412341234")
		}

		return errors.New("4000123412341234 was refused")
	}
}

var cardNumber = regexp.MustCompile(`\d{12,19}`)

// redact hides numbers of cards.
func redact(text string) string { return cardNumber.ReplaceAllString(text, "[card]") }

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
	topic := "context-" + watermill.NewShortUUID()
	ids := []string{"pay with 4000123412341234"}

	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Policies: policies,
		// The text of every error, before it is written on a message or logged.
		ErrorText: func(err error) string { return redact(err.Error()) },
		// Logs have payloads only with this function.
		PayloadText: func(payload []byte) string { return redact(string(payload)) },
		// PanicStacks: true adds the stack to the text of a panic.
		OnEvent: untilDone(router, int64(len(ids)), out), Logger: payloads{out: out},
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
	router.AddConsumerHandler("pay", topic, subscriber, pay(out))

	if err := publish(retrier, subscriber, topic, ids...); err != nil {
		return err
	}

	return router.Run(ctx)
}

// payloads is a logger that prints the payloads of failed messages.
type payloads struct {
	watermill.NopLogger
	out io.Writer
}

func (l payloads) Info(_ string, fields watermill.LogFields) {
	if payload, ok := fields["payload"]; ok {
		fmt.Fprintf(l.out, "log: %s: %s\n", fields["verdict"], payload)
	}
}

func (l payloads) With(watermill.LogFields) watermill.LoggerAdapter { return l }

// untilDone prints the end of each message, and closes the router after the last of n.
func untilDone(router *message.Router, n int64, out io.Writer) func(retry.Event) {
	var ended atomic.Int64

	return func(event retry.Event) {
		switch event.Kind {
		case retry.EventSucceeded:
		case retry.EventDeadLettered:
			fmt.Fprintf(out, "%s: dead letter, %s, calls: %d\n", event.Message.UUID, event.Verdict.Reason, event.Calls)
		default:
			return
		}
		if ended.Add(1) == n {
			go router.Close()
		}
	}
}

// publish sends a message for each id, once the queue exists.
func publish(retrier *amqpv2.Retrier, subscriber message.SubscribeInitializer, topic string, ids ...string) error {
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return err
	}
	publisher, err := retrier.NewPublisher()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := publisher.Publish(topic, message.NewMessage(id, []byte(id))); err != nil {
			return err
		}
	}

	return nil
}
