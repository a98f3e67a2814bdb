// Rate-limit shows a handler that may be called once in a second: a message waits in place while its turn is near, and
// on the broker while it is not.
package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/time/rate"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/internal/play"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() { play.Main(run) }

func run(ctx context.Context, uri string, to io.Writer) error {
	out, topic := play.To(to), "rate-limit-"+watermill.NewShortUUID()

	limit, err := protect.NewRateLimit(protect.RateLimitConfig{
		Limit: rate.Every(time.Second), Burst: 1, MaxWait: 200 * time.Millisecond,
	})
	if err != nil {
		return err
	}

	// In a service: router.AddMiddleware(retrier.Middleware, limit.Middleware)
	send := limit.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		out.Printf("%s: sent, attempt %d\n", msg.UUID, attempt.Number)

		return nil, nil
	})
	handler := func(msg *message.Message) error {
		_, err := send(msg)
		if errors.Is(err, protect.ErrRateLimited) {
			out.Printf("%s: postponed until its turn\n", msg.UUID)
		}

		return err
	}

	policy := config.Policy{Delays: []time.Duration{time.Second, 2 * time.Second}}
	options := amqpretry.Options{Policies: config.Policies{Default: policy}}
	defer play.Remove(uri, options, topic)

	return play.Run(ctx, uri, out, options, play.Handlers{topic: handler},
		play.Message{Topic: topic, ID: "mail-1"}, play.Message{Topic: topic, ID: "mail-2"},
		play.Message{Topic: topic, ID: "mail-3"},
	)
}
