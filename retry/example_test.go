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
	class, after := engine.Classify(&policy, retry.ClassError, err)
	return engine.Decide(&policy, engine.Case{Class: class, After: after, Now: time.Now()})
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
			fmt.Printf("attempt %d of %d, last: %t\n", attempt.Number, attempt.MaxRetries+1, attempt.Last)
			for _, failed := range attempt.History {
				fmt.Printf("  call %d: %s\n", failed.Number, failed.Error)
			}
			if attempt.Number == 2 {
				panic("no connection")
			}
		}

		return errors.New("the card was refused")
	}

	retrytest.Run(retrytest.Service{
		Policy: config.Policy{Delays: []time.Duration{time.Second, 30 * time.Second}}, ConsumerHandler: handler,
	}, message.NewMessage("1", nil))
	// Output:
	// attempt 1 of 3, last: false
	// attempt 2 of 3, last: false
	//   call 1: the card was refused
	// attempt 3 of 3, last: true
	//   call 1: the card was refused
	//   call 2: handler panicked: no connection
}

// A message that is worth nothing when it is late: MaxAge ends its retries, however many are left.
// The handler knows the deadline. The expiration property of a message is honoured in the same way.
func ExampleAttempt_deadline() {
	policy := config.Policy{
		Delays: []time.Duration{4 * time.Second}, Retries: 100, MaxAge: 10 * time.Second,
		// OnExpiry: config.ExpiryDrop acknowledges the message instead of keeping a dead letter.
	}
	clock := retrytest.NewClock(time.Now()) // a service uses time.Until
	show := func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		fits := attempt.Deadline.Sub(clock.Now()) > 4*time.Second
		fmt.Printf("attempt %d, time for another one: %t\n", attempt.Number, fits)

		return errors.New("the display is off")
	}

	price := retrytest.Run(retrytest.Service{Policy: policy, ConsumerHandler: show, Clock: clock},
		message.NewMessage("price", nil))
	fmt.Println(price.End, price.DeadLetter.Reason)
	// Output:
	// attempt 1, time for another one: true
	// attempt 2, time for another one: true
	// attempt 3, time for another one: false
	// dead-lettered expired
}

// Who decides what an error means: the handler marks it, the policy lists errors of libraries that
// know nothing of retries, and Options.Decide of the retrier outranks the list.
func Example_errors() {
	errNoSuchCustomer := errors.New("no such customer")
	policy := config.Policy{
		Delays:     []time.Duration{time.Second},
		NeverRetry: []config.ErrorMatch{config.Is(errNoSuchCustomer), config.As[*fs.PathError]()},
	}
	bill := func(msg *message.Message) error {
		switch msg.UUID {
		case "customer", "new-customer":
			return fmt.Errorf("billing: %w", errNoSuchCustomer)
		case "template":
			return &fs.PathError{Op: "open", Path: "invoice.tmpl", Err: fs.ErrNotExist}
		case "duplicate":
			return retry.Drop(errors.New("was billed before"))
		case "forged":
			return retry.Permanent(errors.New("the signature is wrong"))
		}

		return errors.New("the bank does not answer")
	}
	decide := func(failure retry.Failure) error {
		if errors.Is(failure.Err, errNoSuchCustomer) && failure.Message.UUID == "new-customer" {
			return retry.Transient(failure.Err) // he may not be there yet
		}

		return failure.Err // what handler and policy say
	}

	for _, id := range []string{"customer", "new-customer", "template", "duplicate", "forged", "payment"} {
		fmt.Println(retrytest.Run(retrytest.Service{
			Topic: "bills", Policy: policy, ConsumerHandler: bill, Decide: decide,
		}, message.NewMessage(id, nil)))
	}
	// Output:
	// message "customer" of topic "bills": dead-lettered (permanent) after 1 call and 0s
	//   0s  attempt 1 of 2  billing: no such customer  dead-letter (permanent)
	// message "new-customer" of topic "bills": dead-lettered (exhausted) after 2 calls and 1s
	//   0s  attempt 1 of 2  billing: no such customer  retry 1 after 1s
	//   1s  attempt 2 of 2  billing: no such customer  dead-letter (exhausted)
	// message "template" of topic "bills": dead-lettered (permanent) after 1 call and 0s
	//   0s  attempt 1 of 2  open invoice.tmpl: file does not exist  dead-letter (permanent)
	// message "duplicate" of topic "bills": dropped after 1 call and 0s
	//   0s  attempt 1 of 2  was billed before  drop
	// message "forged" of topic "bills": dead-lettered (permanent) after 1 call and 0s
	//   0s  attempt 1 of 2  the signature is wrong  dead-letter (permanent)
	// message "payment" of topic "bills": dead-lettered (exhausted) after 2 calls and 1s
	//   0s  attempt 1 of 2  the bank does not answer  retry 1 after 1s
	//   1s  attempt 2 of 2  the bank does not answer  dead-letter (exhausted)
}

// Waits are what a policy and a handler say: RetryAfter uses up an attempt, Postpone does not.
func Example_waits() {
	policy := config.Policy{
		Retries: 3,
		// 400ms, 800ms, 1.6s
		Backoff:   config.Backoff{Kind: config.BackoffExponential, Initial: 400 * time.Millisecond},
		Immediate: 1, // the first failure is followed by another call, without a wait
	}
	ask := func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		switch {
		case msg.UUID == "polite" && attempt.Calls == 0:
			return retry.RetryAfter(600*time.Millisecond, errors.New("429 Too Many Requests"))
		case msg.UUID == "patient" && attempt.Calls < 2:
			return retry.Postpone(100 * time.Millisecond) // the other half of it has not come yet
		case msg.UUID == "doomed":
			return errors.New("the database does not answer")
		}

		return nil
	}

	for _, id := range []string{"doomed", "polite", "patient"} {
		fmt.Println(retrytest.Run(retrytest.Service{Topic: "orders", Policy: policy, ConsumerHandler: ask},
			message.NewMessage(id, nil)))
	}
	// Output:
	// message "doomed" of topic "orders": dead-lettered (exhausted) after 5 calls and 2.8s
	//   0s     attempt 1 of 4         the database does not answer  retry-now
	//   0s     attempt 1 of 4, try 2  the database does not answer  retry 1 after 400ms
	//   400ms  attempt 2 of 4         the database does not answer  retry 2 after 800ms
	//   1.2s   attempt 3 of 4         the database does not answer  retry 3 after 1.6s
	//   2.8s   attempt 4 of 4         the database does not answer  dead-letter (exhausted)
	// message "polite" of topic "orders": succeeded after 2 calls and 800ms
	//   0s     attempt 1 of 4  429 Too Many Requests  retry 1 after 800ms
	//   800ms  attempt 2 of 4  succeeded              acknowledged
	// message "patient" of topic "orders": succeeded after 3 calls and 800ms
	//   0s     attempt 1 of 4  postponed for 100ms  postpone for 400ms
	//   400ms  attempt 1 of 4  postponed for 100ms  postpone for 400ms
	//   800ms  attempt 1 of 4  succeeded            acknowledged
}
