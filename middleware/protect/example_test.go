package protect_test

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/sony/gobreaker"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
)

// order is a message whose handler the examples protect.
func order() *message.Message { return message.NewMessage("order-1", []byte(`{"id":1}`)) }

// The payment service does not answer. After two failures the breaker is open: messages are
// postponed, which uses up none of their attempts, and the service is left alone.
func ExampleCircuitBreaker() {
	breaker, err := protect.NewCircuitBreaker(protect.CircuitBreakerConfig{
		Settings: gobreaker.Settings{
			Timeout:     time.Hour,
			ReadyToTrip: func(counts gobreaker.Counts) bool { return counts.ConsecutiveFailures >= 2 },
		},
		Postpone: time.Minute,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	calls := 0
	result := retrytest.Run(retrytest.Service{
		Policy: config.Policy{Delays: []time.Duration{time.Second, 5 * time.Second, 30 * time.Second},
			MaxPostpone: 3 * time.Minute},
		Middlewares: []message.HandlerMiddleware{breaker.Middleware},
		ConsumerHandler: func(*message.Message) error {
			calls++
			return errors.New("no answer")
		},
	}, order())
	fmt.Println(calls, "calls,", result.DeadLetter.Reason)
	// Output: 2 calls, postponed-too-long
}

// A provider takes ten calls a second. Who comes too early is postponed.
func ExampleRateLimit() {
	limit, err := protect.NewRateLimit(protect.RateLimitConfig{Limit: 10, Burst: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	result := retrytest.Run(retrytest.Service{
		Middlewares:     []message.HandlerMiddleware{limit.Middleware},
		ConsumerHandler: func(*message.Message) error { return nil },
	}, order())
	fmt.Println(result.End)
	// Output: succeeded
}

// A publisher has sent an order twice. The second is acknowledged without a call; one that had
// failed would not be.
func ExampleDeduplicator() {
	deduplicator, err := protect.NewDeduplicator(protect.DeduplicatorConfig{Window: time.Hour})
	if err != nil {
		fmt.Println(err)
		return
	}
	charged := 0
	service := retrytest.Service{Handler: deduplicator.Middleware(func(*message.Message) ([]*message.Message, error) {
		charged++
		return nil, nil
	})}
	retrytest.Run(service, order())
	retrytest.Run(service, order())
	fmt.Println("charged", charged, "time")
	// Output: charged 1 time
}

// Errors of a client's own protection cost no attempt either.
func ExamplePostponeOn() {
	errBusy := errors.New("busy")
	calls := 0
	result := retrytest.Run(retrytest.Service{
		Policy:      config.Policy{Delays: []time.Duration{time.Minute}},
		Middlewares: []message.HandlerMiddleware{protect.PostponeOn(time.Minute, config.Is(errBusy))},
		ConsumerHandler: func(*message.Message) error {
			if calls++; calls < 4 {
				return fmt.Errorf("payment: %w", errBusy)
			}
			return nil
		},
	}, order())
	fmt.Println(result.End, "after", calls, "calls, with a policy of 2")
	// Output: succeeded after 4 calls, with a policy of 2
}

// Everything that is wrong is told at once, at start-up.
func ExampleNewRateLimit() {
	_, err := protect.NewRateLimit(protect.RateLimitConfig{Burst: -1})
	fmt.Println(err)
	// Output:
	// RateLimitConfig.Limit: out of bounds: must be more than 0 calls in a second, got 0
	// RateLimitConfig.Burst: out of bounds: must be 1 or more: how many calls may come at once, got -1
}

// Two instances of a service share an inbox: a message that was handled by one is acknowledged by
// the other.
func ExampleDeduplicator_inbox() {
	inbox, err := store.NewMemory(store.MemoryConfig{}) // one of redisstore or sqlstore in a service
	if err != nil {
		fmt.Println(err)
		return
	}
	charged := 0
	for range 2 {
		deduplicator, err := protect.NewDeduplicator(protect.DeduplicatorConfig{Inbox: inbox, Name: "billing"})
		if err != nil {
			fmt.Println(err)
			return
		}
		retrytest.Run(retrytest.Service{
			Handler: deduplicator.Middleware(func(*message.Message) ([]*message.Message, error) {
				charged++
				return nil, nil
			}),
		}, order())
		if err := deduplicator.Close(); err != nil { // the inbox knows of what was handled
			fmt.Println(err)
		}
	}
	fmt.Println("charged", charged, "time")
	// Output: charged 1 time
}

// The effects of a handler are committed together with the mark that its message was handled.
func ExampleTransactional() {
	var db *sql.DB
	var inbox store.TxInbox // a store of sqlstore in that database
	_, err := protect.NewTransactional(protect.TransactionalConfig{DB: db, Inbox: inbox})
	fmt.Println(err)

	_ = func(msg *message.Message) error {
		tx := protect.TxFromContext(msg.Context())
		_, err := tx.ExecContext(msg.Context(), "UPDATE accounts SET balance = balance - 1 WHERE id = 7")

		return err
	}
	// Output:
	// TransactionalConfig.DB: missing: must be the database of the effects, got nil
	// TransactionalConfig.Inbox: missing: must be an inbox in the same database, got nil
}
