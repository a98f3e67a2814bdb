package retry_test

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/retry"
)

// decide tells what becomes of a message whose handler fails with err for the first time.
func decide(policy config.Policy, err error) retry.Verdict {
	class, after := engine.Classify(policy, retry.ClassError, err)
	return engine.Decide(policy, engine.Case{Class: class, After: after, Now: time.Now()})
}

func ExamplePermanent() {
	handler := func(msg *message.Message) error {
		if len(msg.Payload) == 0 {
			return retry.Permanent(errors.New("no payload")) // no retry will bring one
		}

		return nil
	}

	err := handler(message.NewMessage("1", nil))
	fmt.Println(err)
	fmt.Println(errors.Is(err, retry.ErrPermanent))
	fmt.Println(decide(config.Default(), err))
	// Output:
	// no payload
	// true
	// dead-letter (permanent)
}

func ExampleDrop() {
	handler := func(*message.Message) error {
		return retry.Drop(errors.New("the order was deleted")) // nobody will look for it in a dead-letter queue
	}

	err := handler(message.NewMessage("1", nil))
	fmt.Println(err)
	fmt.Println(errors.Is(err, retry.ErrDrop))
	fmt.Println(decide(config.Default(), err))
	// Output:
	// the order was deleted
	// true
	// drop
}

func ExampleRetryAfter() {
	policy := config.Policy{Delays: []time.Duration{time.Second, 30 * time.Second}}

	err := retry.RetryAfter(25*time.Second, errors.New("429 Too Many Requests"))
	fmt.Println(err)
	fmt.Println(decide(policy, err))
	// Output:
	// 429 Too Many Requests
	// retry 1 after 30s
}

func ExamplePostpone() {
	err := fmt.Errorf("the payment is not there yet: %w", retry.Postpone(time.Second))
	fmt.Println(err)
	fmt.Println(decide(config.Default(), err))
	// Output:
	// the payment is not there yet: postponed for 1s
	// postpone for 1s
}

func ExampleTransient() {
	policy := config.Policy{NeverRetry: []config.ErrorMatch{config.Is(fs.ErrNotExist)}}

	fmt.Println(decide(policy, fs.ErrNotExist))
	fmt.Println(decide(policy, retry.Transient(fs.ErrNotExist))) // it will be uploaded soon
	// Output:
	// dead-letter (permanent)
	// retry 1 after 1s
}

func ExampleAttemptFromContext() {
	handler := func(msg *message.Message) error {
		if attempt, ok := retry.AttemptFromContext(msg.Context()); ok {
			fmt.Printf("attempt %d of %d, last: %t, before: %q\n",
				attempt.Number, attempt.MaxRetries+1, attempt.Last, attempt.LastError)
		}

		return errors.New("connection refused")
	}

	retrytest.Run(retrytest.Service{
		Policy: config.Policy{Delays: []time.Duration{time.Second, 30 * time.Second}}, ConsumerHandler: handler,
	}, message.NewMessage("1", nil))
	// Output:
	// attempt 1 of 3, last: false, before: ""
	// attempt 2 of 3, last: false, before: "connection refused"
	// attempt 3 of 3, last: true, before: "connection refused"
}
