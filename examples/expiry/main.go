// Expiry shows messages that are worth nothing when they are late: a maximum age by the policy of each topic, and where
// a message goes that has outlived it. The expiration property of a message is honoured in the same way.
package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/internal/play"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() { play.Main(run) }

func run(ctx context.Context, uri string, to io.Writer) error {
	out, topic := play.To(to), "prices-"+watermill.NewShortUUID()

	policies := config.Policies{Topics: map[string]config.Policy{
		// Retried for two seconds, then no more, however many retries are left.
		topic: {Delays: []time.Duration{500 * time.Millisecond}, Retries: 100, MaxAge: 2 * time.Second},
		// topic: {…, OnExpiry: config.ExpiryDrop} would acknowledge it instead.
	}}

	handler := func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		fits := time.Until(attempt.Deadline) > 500*time.Millisecond
		out.Printf("%s: attempt %d, time for another one: %t\n", msg.UUID, attempt.Number, fits)

		return errors.New("the display is off")
	}

	options := amqpretry.Options{Policies: policies}
	defer play.Remove(uri, options, topic)

	return play.Run(ctx, uri, out, options, play.Handlers{topic: handler}, play.Message{Topic: topic, ID: "price"})
}
