// Delays shows what a policy can say about waiting: tries at once, delays that grow, and handlers that ask for a time
// of their own, with an attempt used up or without.
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
	out, topic := play.To(to), "delays-"+watermill.NewShortUUID()

	policy := config.Policy{
		Retries: 3,
		// 400ms -> 800ms -> 1.6s
		Backoff:   config.Backoff{Kind: config.BackoffExponential, Initial: 400 * time.Millisecond},
		Immediate: 1,
		Jitter:    0.1,
	}

	var last time.Time
	handler := func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		waited := time.Duration(0)
		if attempt.Calls > 0 {
			waited = time.Since(last)
		}
		last = time.Now()
		out.Printf("%s: attempt %d, try %d, after %s\n", msg.UUID, attempt.Number, attempt.Try, about(waited))

		switch {
		case msg.UUID == "polite" && attempt.Calls == 0:
			return retry.RetryAfter(600*time.Millisecond, errors.New("429 Too Many Requests"))
		case msg.UUID == "patient" && attempt.Calls < 2:
			return retry.Postpone(100 * time.Millisecond) // the other half has not come yet
		case msg.UUID == "doomed":
			return errors.New("the database does not answer")
		}

		return nil
	}

	options := amqpretry.Options{Policies: config.Policies{Default: policy}}
	defer play.Remove(uri, options, topic)
	for _, id := range []string{"doomed", "polite", "patient"} { // one after the other, for a readable output
		if err := play.Run(ctx, uri, out, options, play.Handlers{topic: handler},
			play.Message{Topic: topic, ID: id}); err != nil {
			return err
		}
	}

	return nil
}

// about names the delay of the policy that a wait was, jitter and the broker's own time included.
func about(waited time.Duration) string {
	for _, d := range []time.Duration{1600 * time.Millisecond, 800 * time.Millisecond, 400 * time.Millisecond} {
		if waited >= d*9/10 {
			return d.String()
		}
	}

	return "no wait"
}
