package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// A middleware that was forgotten, and a subscriber that is not the retrier's, are said and do not
// spin.

// failingFirst fails the first calls of each message, whatever the library tells of them.
func failingFirst(times int) func(*message.Message) error {
	var (
		mu    sync.Mutex
		calls = map[string]int{}
	)

	return func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if calls[msg.UUID]++; calls[msg.UUID] <= times {
			return errFate
		}

		return nil
	}
}

// withoutDelivery is a message's context without what the retrier has put there.
type withoutDelivery struct{ context.Context }

func (c withoutDelivery) Value(key any) any {
	if fmt.Sprintf("%T", key) == "retry.deliveryKey" {
		return nil
	}

	return c.Context.Value(key)
}

const noMiddlewareLog = "No message reaches retrier.Middleware"

// Without the middleware a failing message comes back ever more slowly, others pass it, and one
// line says why.
func TestNoHotLoopWithoutMiddleware(t *testing.T) {
	t.Parallel()

	eachQueueType(t, func(t *testing.T, queueType string) {
		// The pause of the library is fixed. A machine that stands still makes a close longer
		// and never shorter, so the shortest of three closes counts.
		took := closeDuringPause(t, queueType)
		for again := 0; again < 2 && took >= 4*time.Second; again++ {
			took = closeDuringPause(t, queueType)
		}
		assert.Less(t, took, 4*time.Second, "a close ends the pause, which is 5 s")
	})
}

// closeDuringPause runs a service without the middleware until its failing message waits for 5 s.
// It returns how long a close takes then.
func closeDuringPause(t *testing.T, queueType string) time.Duration {
	t.Helper()
	c := setup{QueueType: queueType, Prefetch: 3,
		Options: amqpretry.Options{CloseTimeout: 15 * time.Second}}
	c.Route = func(svc *service) {
		bare(t, svc)
		svc.Router.AddConsumerHandler("handler", svc.Queue, svc.Sub, svc.recorded(byFate))
	}
	svc := start(t, c)
	began := time.Now()
	svc.publish("never")
	svc.publish(rabbit.Numbered("ok", 20)...)

	others := func() []call {
		return slices.DeleteFunc(svc.Calls.All(), func(c call) bool { return c.ID == "never" })
	}
	await.Until(t, func() bool { return len(others()) >= 20 }, "others pass it")
	await.Until(t, func() bool { return len(svc.Calls.of("never")) >= 7 }, "it comes back")
	assert.GreaterOrEqual(t, time.Since(began), 6300*time.Millisecond, "after 0.1, 0.2 … 3.2 s")
	assert.Len(t, others(), 20, "each once")
	logged := svc.Logs.with(noMiddlewareLog)
	require.Len(t, logged, 1)
	assert.Equal(t, "error", logged[0].Level)
	assert.Equal(t, svc.Queue, logged[0].Fields["topic"])
	require.ErrorContains(t, logged[0].Err, "router.AddMiddleware(retrier.Middleware)")

	took := svc.close()
	left := svc.Broker.Take(svc.Queue, 1)
	assert.Equal(t, []string{"never"}, []string{rabbit.UUID(left[0])})
	for key := range left[0].Headers {
		assert.NotContains(t, key, "amqpretry", "nothing is counted")
	}

	return took
}

// Once the middleware has seen a message, a nack that it did not see is Watermill's plain one.
func TestPlainNackBesideTheMiddlewareIsNotSlowedDown(t *testing.T) {
	t.Parallel()

	var locked calls
	c := setup{Handler: succeed}
	c.Route = func(svc *service) {
		bare(t, svc, func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				if msg.UUID == "locked" {
					if locked.add(msg); locked.count() < 100 {
						return nil, errors.New("not yet")
					}
				}

				return h(msg)
			}
		}, svc.Retrier.Middleware)
		svc.Router.AddConsumerHandler("handler", svc.Queue, svc.Sub, svc.recorded(succeed))
	}
	svc := start(t, c)
	svc.publish("first")
	await.Until(t, func() bool { return len(svc.Calls.of("first")) == 1 }, "the middleware sees a message")
	svc.publish("locked")
	await.Until(t, func() bool { return len(svc.Calls.of("locked")) == 1 }, "it gets through")
	assert.Less(t, shortestGap(locked.All()), firstNackPause)
	assert.Empty(t, svc.Logs.with(noMiddlewareLog))
}

// firstNackPause is the shortest pause before a nack that no middleware has seen. 99 nacks with
// pauses take 8 minutes, as the pauses grow.
const firstNackPause = 100 * time.Millisecond

// shortestGap returns the shortest time between two calls that follow each other. A busy machine
// makes many of them longer, but a pause makes all of them longer.
func shortestGap(all []call) time.Duration {
	shortest := time.Hour
	for i := 1; i < len(all); i++ {
		shortest = min(shortest, all[i].At.Sub(all[i-1].At))
	}

	return shortest
}

// Under policy off a nack is what it is without the retrier, and nothing is said.
func TestPlainNackUnderPolicyOff(t *testing.T) {
	t.Parallel()

	c := setup{URI: brokertest.URI(t)}
	c.Options.Policies = config.Policies{Default: config.Policy{Mode: config.ModeOff}}
	c.Route = func(svc *service) {
		bare(t, svc)
		svc.Router.AddConsumerHandler("handler", svc.Queue, svc.Sub, svc.recorded(failingFirst(99)))
	}
	svc := start(t, c)
	svc.publish("1")
	await.Until(t, func() bool { return len(svc.Calls.of("1")) == 100 }, "it comes back at once")
	assert.Less(t, shortestGap(svc.Calls.of("1")), firstNackPause)
	assert.Empty(t, svc.Logs.with(noMiddlewareLog))
}

const foreignLog = "Message was not received through this retrier"

// A subscriber of watermill-amqp that was not made with the retrier's config gets no retries: that
// is said once for each handler, as an error, and the messages pass untouched.
func TestForeignSubscriberIsAnError(t *testing.T) {
	t.Parallel()

	uri := brokertest.URI(t)
	c := setup{URI: uri}
	var stock *amqp.Subscriber
	c.Route = func(svc *service) {
		conf := plainConfig(uri, "classic")
		var err error
		stock, err = amqp.NewSubscriber(conf, svc.Logs) // not with svc.Retrier.Config()
		require.NoError(t, err)
		svc.Router.AddConsumerHandler("forgetful", svc.Queue, stock, svc.recorded(failingFirst(3)))
	}
	svc := start(t, c)
	svc.publish("1", "2")
	await.Until(t, func() bool {
		return len(svc.Calls.of("1")) == 4 && len(svc.Calls.of("2")) == 4
	}, "both are handled")

	logged := svc.Logs.with(foreignLog)
	require.Len(t, logged, 1)
	assert.Equal(t, "error", logged[0].Level)
	assert.Equal(t, "forgetful", logged[0].Fields["handler_name"])
	assert.Equal(t, svc.Queue, logged[0].Fields["topic"])
	require.ErrorContains(t, logged[0].Err, "amqp.NewSubscriber(retrier.Config(), logger)")
}

// A message that something outside of the middleware has copied has lost its delivery.
func TestCopiedMessageIsAnError(t *testing.T) {
	t.Parallel()

	c := setup{URI: brokertest.URI(t)}
	c.Route = func(svc *service) {
		bare(t, svc, func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				copied := msg.Copy()
				// The names are the router's, as a decorator that copies before it would leave
				// them.
				copied.SetContext(withoutDelivery{msg.Context()})

				return h(copied)
			}
		}, svc.Retrier.Middleware)
		svc.Router.AddConsumerHandler("handler", svc.Queue, svc.Sub, svc.recorded(failingFirst(1)))
	}
	svc := start(t, c)
	svc.publish("1")
	await.Until(t, func() bool { return len(svc.Calls.of("1")) == 2 }, "it is handled")
	logged := svc.Logs.with(foreignLog)
	require.Len(t, logged, 1)
	assert.Equal(t, "error", logged[0].Level)
	require.ErrorContains(t, logged[0].Err, "copies")
	assert.Len(t, svc.Logs.with(noMiddlewareLog), 1)
}

// Messages of another retrier are no mistake, on stock subscribers either, nor are those under
// policy off.
func TestMessagesOfOtherRetriersAreNoError(t *testing.T) {
	t.Parallel()

	uri := brokertest.URI(t)
	for name, test := range map[string]struct {
		mode    config.Mode
		swapped bool
	}{"outside": {}, "inside": {swapped: true}, "off": {mode: config.ModeOff}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			others := newLogs(t)
			other := newRetrier(t, amqp.NewDurableQueueConfig(uri), amqpretry.Options{Logger: others})
			c := setup{URI: uri}
			c.Options.Policies = retries(ms(50)...)
			c.Options.HoldWarning = await.Bound // a busy broker that confirms late is no error either
			c.Options.Policies.Default.Mode = test.mode
			if test.mode == config.ModeOff {
				c.Options.Policies = config.Policies{Default: config.Policy{Mode: config.ModeOff}}
			}
			c.Route = func(svc *service) {
				middlewares := []message.HandlerMiddleware{other.Middleware, svc.Retrier.Middleware}
				if test.swapped {
					slices.Reverse(middlewares)
				}
				bare(t, svc, middlewares...)
				stock := must(amqp.NewSubscriber(svc.Retrier.Config(), watermill.NopLogger{}))(t)
				svc.Router.AddConsumerHandler("stock", svc.Queue, stock, svc.recorded(failingFirst(1)))
			}
			svc := start(t, c)
			svc.publish("1")
			await.Until(t, func() bool { return len(svc.Calls.of("1")) == 2 }, "it is retried")
			for _, l := range slices.Concat(svc.Logs.All(), others.All()) {
				if l.Level == "error" && l.Text != "Handler returned error" {
					t.Errorf("logged: %s", l)
				}
			}
		})
	}
}
