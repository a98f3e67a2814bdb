// Context shows what a handler can know of its message's past, and the hooks that keep secrets out of dead letters and
// logs.
package main

import (
	"context"
	"errors"
	"io"
	"regexp"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/internal/play"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() { play.Main(run) }

var cardNumber = regexp.MustCompile(`\d{12,19}`)

func redact(text string) string { return cardNumber.ReplaceAllString(text, "[card]") }

func run(ctx context.Context, uri string, to io.Writer) error {
	out, topic := play.To(to), "cards-"+watermill.NewShortUUID()

	options := amqpretry.Options{
		Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{100 * time.Millisecond}, Retries: 2}},
		// The text of every error, before it is written on a message or logged.
		ErrorText: func(err error) string { return redact(err.Error()) },
		// Payloads are logged only with this, as it shows them.
		PayloadText: func(payload []byte) string { return redact(string(payload)) },
		// PanicStacks: true adds the stack to the text of a panic.
		Logger: payloadLogger{out: out},
	}
	defer play.Remove(uri, options, topic)

	handler := func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		out.Printf("attempt %d of %d, last: %t\n", attempt.Number, attempt.MaxRetries+1, attempt.Last)
		for _, failed := range attempt.History {
			out.Printf("  call %d: %s\n", failed.Number, failed.Error)
		}
		if attempt.Number == 2 {
			panic("no connection for 4000123412341234")
		}

		return errors.New("4000123412341234 was refused")
	}

	return play.Run(ctx, uri, out, options, play.Handlers{topic: handler},
		play.Message{Topic: topic, ID: "pay with 4000123412341234"})
}

// payloadLogger shows one field of what is logged.
type payloadLogger struct {
	watermill.NopLogger
	out *play.Writer
}

func (l payloadLogger) Info(_ string, fields watermill.LogFields) {
	if payload, ok := fields["payload"]; ok {
		l.out.Printf("log: %s: %s\n", fields["verdict"], payload)
	}
}

func (l payloadLogger) With(watermill.LogFields) watermill.LoggerAdapter { return l }
