// Exact-delays shows retries that wait just as long as they are asked to. Look at
//
//   - policies: the strategy ladder, with a jitter that spreads a burst of failures,
//   - order, the handler: it obeys the Retry-After of an API, in one wait. In retry queues, the
//     wait would be made of the policy's own delays.
//
// The ladder has a prefix of its own, so that the program can delete it. A service leaves Ladder
// out: all services of a virtual host share the default one, and nobody deletes it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/retry"
)

// policies have one delay, of which up to 80 % are random: a retry comes after 200ms to 1s.
func policies(ladder config.Ladder) config.Policies {
	return config.Policies{Default: config.Policy{
		Delays:   []time.Duration{time.Second},
		Jitter:   0.8,
		Strategy: config.StrategyLadder,
		Ladder:   ladder,
	}}
}

// order is the handler. It calls an API that may be busy.
func order(api string) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		if msg.UUID != "order-1" { // one of the burst
			if attempt.Number == 1 {
				return errors.New("the database restarts")
			}

			return nil
		}

		err := charge(msg.Context(), api)
		if err != nil {
			fmt.Printf("%s: attempt %d, %v\n", msg.UUID, attempt.Number, err)
			return err
		}
		fmt.Printf("%s: attempt %d, charged\n", msg.UUID, attempt.Number)

		return nil
	}
}

// charge marks the error with the time that the API asks for.
func charge(ctx context.Context, api string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, api, http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusTooManyRequests {
		return nil
	}
	err = errors.New(response.Status)
	wait, parsed := time.ParseDuration(response.Header.Get("Retry-After") + "s") // it can also be a date
	if parsed != nil {
		return err // retried after the policy's delay
	}

	return retry.RetryAfter(wait, err)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string) error {
	api := httptest.NewServer(busyOnce())
	defer api.Close()
	conf := amqp.NewDurableQueueConfig(uri)
	logger := watermill.NopLogger{} // this program prints what happens; a service logs it
	topic := "exact-delays-" + watermill.NewShortUUID()
	ladder := config.Ladder{Prefix: topic + ".delay", Levels: 3} // up to 99.9s

	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	ids := []string{"order-1"}
	for n := range burst {
		ids = append(ids, fmt.Sprintf("burst-%d", n+1))
	}
	told := &waits{router: router, left: len(ids)}
	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Policies: policies(ladder), OnEvent: told.onEvent, Logger: logger,
	})
	if err != nil {
		return err
	}
	defer retrier.Close()
	defer demo.TidyLadder(uri, ladder) // no service deletes its queues
	defer demo.Tidy(uri, retrier, topic)
	router.AddMiddleware(retrier.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	router.AddConsumerHandler("order", topic, subscriber, order(api.URL))

	publisher, err := retrier.NewPublisher()
	if err != nil {
		return err
	}
	if err := demo.Publish(publisher, subscriber, topic, ids...); err != nil {
		return err
	}
	if err := router.Run(ctx); err != nil {
		return err
	}
	told.summary()

	return nil
}

// busyOnce is an API that answers its first request with 429.
func busyOnce() http.HandlerFunc {
	var once sync.Once

	return func(w http.ResponseWriter, _ *http.Request) {
		once.Do(func() {
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusTooManyRequests)
		})
	}
}

// burst is how many messages fail at the same moment.
const burst = 60

// waits prints how long messages wait, and closes the router after the last one.
type waits struct {
	router *message.Router

	mu      sync.Mutex
	left    int
	ofBurst []time.Duration
}

func (w *waits) onEvent(event retry.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case event.Kind == retry.EventRetried && event.Message.UUID == "order-1":
		fmt.Printf("%s: waits %v\n", event.Message.UUID, event.Verdict.Delay)
	case event.Kind == retry.EventRetried:
		w.ofBurst = append(w.ofBurst, event.Verdict.Delay)
	case event.Kind == retry.EventSucceeded:
		if w.left--; w.left == 0 {
			go w.router.Close()
		}
	}
}

// summary counts the burst's retries in each quarter of the time over which they are spread.
func (w *waits) summary() {
	quarters := make([]int, 4)
	for _, wait := range w.ofBurst {
		quarters[(wait-200*time.Millisecond-1)/(200*time.Millisecond)]++
	}
	if slices.Min(quarters) == 0 {
		fmt.Printf("burst: not spread, in each 200ms: %v\n", quarters)
		return
	}
	fmt.Printf("burst: %d retries, some in each 200ms from 200ms to 1s\n", len(w.ofBurst))
}
