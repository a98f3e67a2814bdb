package middleware

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// delivery is one that takes every settlement.
type delivery struct {
	Standing
	settled chan Settlement
}

func (*delivery) Owner() any      { return "plug" }
func (*delivery) Queue() string   { return "queue" }
func (*delivery) Succeeded()      {}
func (*delivery) Enter()          {}
func (*delivery) Leave()          {}
func (*delivery) Withdrawn() bool { return false }
func (d *delivery) Settle(_ context.Context, s Settlement) error {
	d.settled <- s
	return nil
}

// run handles messages in a router of Watermill with ours among its middlewares, and gives what was settled for the last.
func run(t *testing.T, messages int, handler message.NoPublishHandlerFunc, middlewares ...message.HandlerMiddleware) Settlement {
	t.Helper()

	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 5 * time.Second}, watermill.NopLogger{})
	require.NoError(t, err)
	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})

	settled := make(chan Settlement, messages)
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			d := &delivery{settled: settled}
			policy := config.Default()
			d.Arrive(&policy, &wire.State{})
			msg.SetContext(WithDelivery(msg.Context(), d))
			return h(msg)
		}
	})
	router.AddMiddleware(middlewares...)
	router.AddConsumerHandler("handler", "topic", channel, handler)

	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	<-router.Running()

	var last Settlement
	for range messages {
		require.NoError(t, channel.Publish("topic", message.NewMessage("", nil)))
		select {
		case last = <-settled:
		default: // taken away by another middleware
		}
	}

	require.NoError(t, router.Close())
	require.NoError(t, <-done)

	return last
}

func fails(*message.Message) error { return errors.New("boom") }

func poisonQueue(t *testing.T) message.HandlerMiddleware {
	t.Helper()

	publisher := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	middleware, err := wmmiddleware.PoisonQueue(publisher, "poison")
	require.NoError(t, err)

	return middleware
}

func filteredPoisonQueue(t *testing.T) message.HandlerMiddleware {
	t.Helper()

	publisher := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	middleware, err := wmmiddleware.PoisonQueueWithFilter(publisher, "poison", func(error) bool { return true })
	require.NoError(t, err)

	return middleware
}

// The names of Watermill's functions are not its API: this fails when a version renames them.
func TestOrderOfMiddlewares(t *testing.T) {
	retry := wmmiddleware.Retry{MaxRetries: 1, InitialInterval: time.Microsecond}.Middleware
	timeout := wmmiddleware.Timeout(time.Minute)

	for name, test := range map[string]struct {
		outside, inside []message.HandlerMiddleware
		want            []error
	}{
		"ours alone":             {nil, nil, nil},
		"harmless ones":          {[]message.HandlerMiddleware{wmmiddleware.Recoverer, timeout}, []message.HandlerMiddleware{wmmiddleware.CorrelationID}, nil},
		"Retry outside":          {[]message.HandlerMiddleware{retry}, nil, []error{errRetryOutside}},
		"Retry far outside":      {[]message.HandlerMiddleware{retry, timeout, wmmiddleware.Recoverer}, nil, []error{errRetryOutside}},
		"Retry inside":           {nil, []message.HandlerMiddleware{retry}, nil},
		"PoisonQueue outside":    {[]message.HandlerMiddleware{poisonQueue(t)}, nil, []error{errPoisonOutside}},
		"filtered outside":       {[]message.HandlerMiddleware{filteredPoisonQueue(t)}, nil, []error{errPoisonOutside}},
		"PoisonQueue inside":     {nil, []message.HandlerMiddleware{poisonQueue(t)}, []error{errPoisonInside}},
		"filtered inside":        {nil, []message.HandlerMiddleware{filteredPoisonQueue(t)}, []error{errPoisonInside}},
		"both outside":           {[]message.HandlerMiddleware{poisonQueue(t), retry}, nil, []error{errRetryOutside, errPoisonOutside}},
		"InstantAck outside":     {[]message.HandlerMiddleware{wmmiddleware.InstantAck}, nil, []error{errInstantAckOutside}},
		"InstantAck inside":      {nil, []message.HandlerMiddleware{wmmiddleware.InstantAck}, nil},
		"twice outside":          {[]message.HandlerMiddleware{retry, timeout, retry}, nil, []error{errRetryOutside}},
		"on either side of ours": {[]message.HandlerMiddleware{retry}, []message.HandlerMiddleware{poisonQueue(t)}, []error{errPoisonInside, errRetryOutside}},
	} {
		t.Run(name, func(t *testing.T) {
			logger := watermill.NewCaptureLogger()
			ours := Retry{Poison{Owner: "plug", Logger: logger}}.Middleware

			run(t, 2, fails, slices.Concat(test.outside, []message.HandlerMiddleware{ours}, test.inside)...)

			var got []error
			for _, m := range logger.Captured()[watermill.ErrorLogLevel] {
				if m.Msg == "Wrong order of middlewares" {
					got = append(got, m.Err)
				}
			}
			assert.Equal(t, test.want, got, "each mistake is told once")
		})
	}
}

func TestOuterOrderEndsAtTheRouter(t *testing.T) {
	assert.Equal(t, []error{errRetryOutside}, outerOrder([]string{
		retryName + "Middleware.func1", routerName, poisonQueueName + "Middleware.func1",
	}))
	assert.Equal(t, []error{errProtectOutside}, outerOrder([]string{protectName + "(*Deduplicator).Middleware.func1", routerName}))
	assert.Empty(t, outerOrder(nil))

	var stack []string
	run(t, 1, func(*message.Message) error {
		stack = callers()
		return nil
	})
	assert.Contains(t, stack, routerName)
}

// A failure knows where it happened from what the router puts into the context.
func TestFailureInARouter(t *testing.T) {
	var letter Event
	poison := Poison{Owner: "plug", OnEvent: func(e Event) { letter = e }}

	s := run(t, 1, fails, poison.Middleware)
	assert.Equal(t, "topic", s.State.Topic)
	assert.Equal(t, "handler", s.State.Handler)
	assert.Equal(t, "gochannel.GoChannel", s.State.Subscriber)

	s.Done(s.Verdict)
	assert.Equal(t, "topic", letter.Topic)
	assert.Equal(t, "handler", letter.Handler)
}
