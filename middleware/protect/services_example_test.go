package protect_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/sony/gobreaker"
	"golang.org/x/time/rate"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/retry"
)

// The breaker opens after two failures in a row, and lets a message try again after 1.5 s. While it
// is open, messages wait on the broker and use up no attempt. In a service:
// router.AddMiddleware(retrier.Middleware, breaker.Middleware).
func ExampleCircuitBreaker_service() {
	breaker, err := protect.NewCircuitBreaker(protect.CircuitBreakerConfig{Settings: gobreaker.Settings{
		Timeout:     1500 * time.Millisecond,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 2 },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			fmt.Printf("the breaker was %s and is %s\n", from, to)
		},
	}})
	if err != nil {
		panic(err)
	}
	var calls atomic.Int64
	demo.Run(demo.Service{
		Options: amqpretry.Options{
			Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{2 * time.Second}, Retries: 2}},
			OnEvent: func(event retry.Event) {
				if event.Kind == retry.EventPostponed {
					fmt.Printf("%s: postponed\n", event.Message.UUID)
				}
			},
		},
		Middlewares: []message.HandlerMiddleware{breaker.Middleware},
		Handler: func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			if calls.Add(1) <= 2 {
				fmt.Printf("%s: attempt %d, failed\n", msg.UUID, attempt.Number)
				return errors.New("the warehouse does not answer")
			}
			fmt.Printf("%s: attempt %d, shipped\n", msg.UUID, attempt.Number)

			return nil
		},
		Messages: []string{"order-1", "order-2", "order-3", "order-4"},
	})
	// Unordered output:
	// order-1: attempt 1, failed
	// order-2: attempt 1, failed
	// the breaker was closed and is open
	// order-3: postponed
	// order-4: postponed
	// the breaker was open and is half-open
	// order-1: attempt 2, shipped
	// the breaker was half-open and is closed
	// order-2: attempt 2, shipped
	// order-3: attempt 1, shipped
	// order-4: attempt 1, shipped
}

// A handler may be called once in a second. A message waits in the service for up to 200 ms, and on
// the broker when its turn is later; that uses up no attempt. In a service:
// router.AddMiddleware(retrier.Middleware, limit.Middleware).
func ExampleRateLimit_service() {
	limit, err := protect.NewRateLimit(protect.RateLimitConfig{
		Limit: rate.Every(time.Second), Burst: 1, MaxWait: 200 * time.Millisecond,
	})
	if err != nil {
		panic(err)
	}
	demo.Run(demo.Service{
		Options: amqpretry.Options{
			Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{time.Second, 2 * time.Second}}},
			OnEvent: func(event retry.Event) {
				if event.Kind == retry.EventPostponed {
					fmt.Printf("%s: postponed\n", event.Message.UUID)
				}
			},
		},
		Middlewares: []message.HandlerMiddleware{limit.Middleware},
		Handler: func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			fmt.Printf("%s: sent, attempt %d\n", msg.UUID, attempt.Number)

			return nil
		},
		Messages: []string{"mail-1", "mail-2", "mail-3"},
	})
	// Unordered output:
	// mail-1: sent, attempt 1
	// mail-2: postponed
	// mail-2: sent, attempt 1
	// mail-3: postponed
	// mail-3: sent, attempt 1
}

// Duplicates are dropped, while a message that has failed comes through when it is retried. Two
// equal messages share a key, here the number of the order. The default is the UUID, which a
// publisher that sends an order twice does not repeat.
func ExampleDeduplicator_retries() {
	deduplicator, err := protect.NewDeduplicator(protect.DeduplicatorConfig{
		KeyFactory: func(msg *message.Message) (string, error) {
			return strings.TrimSuffix(string(msg.Payload), " again"), nil
		},
		Window: 10 * time.Minute,
	})
	if err != nil {
		panic(err)
	}
	bill := deduplicator.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		if msg.UUID == "order-1" && attempt.Number == 1 {
			return nil, errors.New("the bank does not answer")
		}
		fmt.Printf("%s: attempt %d, billed\n", msg.UUID, attempt.Number)

		return nil, nil
	})
	for _, id := range []string{"order-1", "order-2", "order-2 again"} {
		result := retrytest.Run(retrytest.Service{Handler: bill}, message.NewMessage(id, []byte(id)))
		fmt.Printf("%s: %s\n", id, result.End)
	}
	// Output:
	// order-1: attempt 2, billed
	// order-1: succeeded
	// order-2: attempt 1, billed
	// order-2: succeeded
	// order-2 again: succeeded
}
