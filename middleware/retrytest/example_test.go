package retrytest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/retry"
)

// The service under test: its policy, and a handler that ships orders.
var orders = config.Policy{Delays: []time.Duration{time.Second, 30 * time.Second}, MaxAge: time.Hour}

type warehouse func(order string) error

var errClosed = errors.New("the warehouse is closed")

func (ship warehouse) handle(msg *message.Message) error {
	var order struct{ ID string }
	if err := json.Unmarshal(msg.Payload, &order); err != nil {
		return retry.Permanent(err)
	}

	return ship(order.ID)
}

func ExampleRun() {
	closed := warehouse(func(string) error { return errClosed })

	result := retrytest.Run(
		retrytest.Service{Topic: "orders", Policy: orders, ConsumerHandler: closed.handle},
		message.NewMessage("order-1", []byte(`{"ID":"1"}`)),
	)
	fmt.Println(result)
	// Output:
	// message "order-1" of topic "orders": dead-lettered (exhausted) after 3 calls and 31s
	//   0s   attempt 1 of 3  the warehouse is closed  retry 1 after 1s
	//   1s   attempt 2 of 3  the warehouse is closed  retry 2 after 30s
	//   31s  attempt 3 of 3  the warehouse is closed  dead-letter (exhausted)
}

// In a test, t is the *testing.T.
func ExampleResult_AssertDelays() {
	t := new(testing.T)
	calls := 0
	busy := warehouse(func(string) error {
		if calls++; calls == 1 {
			return retry.RetryAfter(45*time.Second, errors.New("429 Too Many Requests"))
		}

		return nil
	})

	result := retrytest.Run(
		retrytest.Service{Policy: orders, ConsumerHandler: busy.handle},
		message.NewMessage("order-1", []byte(`{"ID":"1"}`)),
	)
	result.AssertDelays(t, time.Minute) // twice the longest
	result.AssertSucceeded(t, 2)

	fmt.Println(!t.Failed())
	// Output: true
}

func ExampleResult_AssertDeadLettered() {
	t := new(testing.T)
	service := retrytest.Service{Policy: orders, ConsumerHandler: warehouse(func(string) error { return nil }).handle}

	result := retrytest.Run(service, message.NewMessage("order-1", []byte(`{"ID":`)))
	result.AssertDeadLettered(t, retry.ReasonPermanent)

	fmt.Println(!t.Failed(), result.DeadLetter.Error, result.DeadLetter.ErrorType)
	// Output: true unexpected end of JSON input *json.SyntaxError
}

// A handler that takes half an hour, as far as it knows.
func ExampleClock() {
	clock := retrytest.NewClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	slow := warehouse(func(string) error {
		clock.Advance(30 * time.Minute)
		return errClosed
	})

	result := retrytest.Run(
		retrytest.Service{Topic: "orders", Policy: orders, ConsumerHandler: slow.handle, Clock: clock},
		message.NewMessage("order-1", []byte(`{"ID":"1"}`)),
	)
	fmt.Println(result)
	fmt.Println(clock.Now().Format(time.TimeOnly))
	// Output:
	// message "order-1" of topic "orders": dead-lettered (expired) after 2 calls and 1h0m1s
	//   0s     attempt 1 of 3, took 30m0s  the warehouse is closed  retry 1 after 1s
	//   30m1s  attempt 2 of 3, took 30m0s  the warehouse is closed  dead-letter (expired)
	// 13:00:01
}

func ExampleResult_Replay() {
	closed := warehouse(func(string) error { return errClosed })
	service := retrytest.Service{Topic: "orders", Policy: orders, ConsumerHandler: closed.handle}
	died := retrytest.Run(service, message.NewMessage("order-1", []byte(`{"ID":"1"}`)))

	service.ConsumerHandler = warehouse(func(string) error { return nil }).handle // repaired
	replayed := died.Replay(service)

	fmt.Println(died.End, died.DeadLetter.Calls)
	fmt.Println(replayed.End, replayed.Steps[0].Attempt.Replays)
	// Output:
	// dead-lettered 3
	// succeeded 1
}

// A deployment in the middle of the first call, and an instance that dies in the second.
func ExampleService_faults() {
	open := warehouse(func(string) error { return nil })

	result := retrytest.Run(retrytest.Service{
		Topic: "orders", Policy: orders, ConsumerHandler: open.handle,
		Faults: map[int]retrytest.Fault{1: retrytest.Shutdown, 2: retrytest.Crash},
	}, message.NewMessage("order-1", []byte(`{"ID":"1"}`)))
	fmt.Println(result)
	// Output:
	// message "order-1" of topic "orders": succeeded after 3 calls and 0s
	//   0s  attempt 1 of 3  taken away by a shutdown  requeue
	//   0s  attempt 1 of 3  the process died          requeue
	//   0s  attempt 1 of 3  succeeded                 acknowledged
}

// A table over errors says what each of them means under a policy.
func ExampleService_errors() {
	policy := orders
	policy.NeverRetry = []config.ErrorMatch{config.Is(errClosed)}

	for _, err := range []error{
		errors.New("timeout"), fmt.Errorf("order 1: %w", errClosed), retry.Drop(errClosed), retry.Transient(errClosed),
		nil,
	} {
		result := retrytest.Run(retrytest.Service{
			Policy: policy, ConsumerHandler: func(*message.Message) error { return err },
		}, message.NewMessage("order-1", nil))
		summary, _, _ := strings.Cut(result.String(), "\n")
		fmt.Println(err, "=>", strings.TrimPrefix(summary, `message "order-1" of topic "topic": `))
	}
	// Output:
	// timeout => dead-lettered (exhausted) after 3 calls and 31s
	// order 1: the warehouse is closed => dead-lettered (permanent) after 1 call and 0s
	// the warehouse is closed => dropped after 1 call and 0s
	// the warehouse is closed => dead-lettered (exhausted) after 3 calls and 31s
	// <nil> => succeeded after 1 call and 0s
}
