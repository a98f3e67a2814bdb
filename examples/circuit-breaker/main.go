// Circuit-breaker shows a breaker around a handler: while what it depends on is down, messages wait instead of being
// tried, and use no attempt up.
package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/sony/gobreaker"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/internal/play"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() { play.Main(run) }

func run(ctx context.Context, uri string, to io.Writer) error {
	out, topic := play.To(to), "circuit-breaker-"+watermill.NewShortUUID()

	breaker, err := protect.NewCircuitBreaker(protect.CircuitBreakerConfig{Settings: gobreaker.Settings{
		Timeout:     1500 * time.Millisecond,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 2 },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			out.Printf("the breaker was %s and is %s\n", from, to)
		},
	}})
	if err != nil {
		return err
	}

	calls := 0
	// In a service: router.AddMiddleware(retrier.Middleware, breaker.Middleware)
	ship := breaker.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		if calls++; calls <= 2 {
			out.Printf("%s: attempt %d, failed\n", msg.UUID, attempt.Number)
			return nil, errors.New("the warehouse does not answer")
		}
		out.Printf("%s: attempt %d, shipped\n", msg.UUID, attempt.Number)

		return nil, nil
	})
	handler := func(msg *message.Message) error {
		_, err := ship(msg)
		if errors.Is(err, gobreaker.ErrOpenState) {
			out.Printf("%s: not tried, postponed\n", msg.UUID)
		}

		return err
	}

	options := amqpretry.Options{
		Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{2 * time.Second}, Retries: 2}}}
	defer play.Remove(uri, options, topic)

	return play.Run(ctx, uri, out, options, play.Handlers{topic: handler},
		play.Message{Topic: topic, ID: "order-1"}, play.Message{Topic: topic, ID: "order-2"},
		play.Message{Topic: topic, ID: "order-3"}, play.Message{Topic: topic, ID: "order-4"},
	)
}
