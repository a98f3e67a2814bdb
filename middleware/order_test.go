package middleware

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/order"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// delivery is one that takes every settlement, and a refusal as the retrier's own do.
type played struct {
	engine.Progress
	engine  *engine.Engine
	settled chan *engine.Settlement
	refused error
}

// stockDelivery is one without a refusal.
type stockDelivery struct{ engine.Delivery }

func (d *played) Engine() *engine.Engine { return d.engine }
func (*played) Queue() string            { return "queue" }
func (*played) NeedsCopy() bool          { return false }
func (*played) Succeeded()               {}
func (*played) Enter(string)             {}
func (*played) Leave()                   {}
func (*played) Withdrawn() bool          { return false }
func (d *played) Refuse(err error) bool {
	d.refused = err
	return true
}

func (d *played) Settle(_ context.Context, s *engine.Settlement) error {
	d.settled <- s
	return nil
}

// outcome is what has become of the last message.
type outcome struct {
	*engine.Settlement
	refused error
}

// run handles messages in a router of Watermill with ours among its middlewares. One that is
// refused is acknowledged, as gochannel would redeliver it for ever.
func run(t *testing.T, judge *engine.Engine, messages int, handler message.NoPublishHandlerFunc,
	middlewares ...message.HandlerMiddleware) outcome {
	t.Helper()

	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 5 * time.Second}, watermill.NopLogger{})
	require.NoError(t, err)
	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})

	settled, refusals := make(chan *engine.Settlement, 2*messages), make(chan error, messages)
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			d := &played{engine: judge, settled: settled}
			policy := config.Default()
			d.Arrive(&policy, &wire.State{})
			msg.SetContext(engine.WithDelivery(msg.Context(), d))
			produced, err := h(msg)
			refusals <- d.refused
			if d.refused != nil {
				return nil, nil
			}

			return produced, err
		}
	})
	router.AddMiddleware(middlewares...)
	router.AddConsumerHandler("handler", "topic", channel, handler)

	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	<-router.Running()

	var last outcome
	for i := range messages {
		require.NoError(t, channel.Publish("topic", message.NewMessage("", []byte{byte(i)})))
		last.refused = <-refusals
		select {
		case last.Settlement = <-settled:
		default: // taken away by another middleware
		}
	}

	require.NoError(t, router.Close())
	require.NoError(t, <-done)

	return last
}

func fails(*message.Message) error { return errors.New("boom") }

// poisonQueues are Watermill's PoisonQueue, without a filter and with one.
func poisonQueues(t *testing.T) (all, filtered message.HandlerMiddleware) {
	t.Helper()
	publisher := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	all, err := wmmiddleware.PoisonQueue(publisher, "poison")
	require.NoError(t, err)
	filtered, err = wmmiddleware.PoisonQueueWithFilter(publisher, "poison", func(error) bool { return true })
	require.NoError(t, err)

	return all, filtered
}

// The names of Watermill's functions are not its API: this fails when a version renames them.
func TestOrderOfMiddlewares(t *testing.T) {
	retry := wmmiddleware.Retry{MaxRetries: 1, InitialInterval: time.Microsecond}.Middleware
	timeout := wmmiddleware.Timeout(time.Minute)
	// Each router gets one that has seen nothing yet: an open breaker outside ours would fail each
	// message for ever.
	breaker := func(h message.HandlerFunc) message.HandlerFunc {
		var middleware message.HandlerMiddleware = wmmiddleware.NewCircuitBreaker(gobreaker.Settings{}).Middleware
		return apply(middleware, h)
	}
	deduplicator := func(h message.HandlerFunc) message.HandlerFunc {
		var middleware message.HandlerMiddleware = (&wmmiddleware.Deduplicator{}).Middleware
		return apply(middleware, h)
	}
	ignore := wmmiddleware.NewIgnoreErrors([]error{errors.New("other")}).Middleware
	delay := (&wmmiddleware.DelayOnError{InitialInterval: time.Second, MaxInterval: time.Second, Multiplier: 2}).
		Middleware
	throttle := wmmiddleware.NewThrottle(1000, time.Second).Middleware
	own := func(h message.HandlerFunc) message.HandlerFunc { return h }
	poison, filtered := poisonQueues(t)

	type chain = []message.HandlerMiddleware
	harmless := chain{wmmiddleware.Recoverer, timeout, wmmiddleware.CorrelationID, throttle, own}
	is := func(mistakes ...string) []string { return mistakes }
	for name, test := range map[string]struct {
		outside, inside chain
		want            []string // what the log says of them
		loses           bool
	}{
		"ours alone":            {nil, nil, nil, false},
		"harmless ones outside": {harmless, nil, nil, false},
		"harmless ones inside":  {nil, harmless, nil, false},
		"Retry outside":         {chain{retry}, nil, is("Retry is added before"), false},
		"Retry far outside": {chain{retry, timeout, wmmiddleware.Recoverer}, nil, is("Retry is added before"),
			false},
		"Retry inside":        {nil, chain{retry}, nil, false},
		"PoisonQueue outside": {chain{poison}, nil, is("PoisonQueue is added before"), false},
		"filtered outside":    {chain{filtered}, nil, is("PoisonQueue is added before"), false},
		"PoisonQueue inside":  {nil, chain{poison}, is("PoisonQueue is added after"), false},
		"filtered inside":     {nil, chain{filtered}, is("PoisonQueue is added after"), false},
		"both outside": {chain{poison, retry}, nil, is("Retry is added before", "PoisonQueue is added before"),
			false},
		"InstantAck outside":     {chain{wmmiddleware.InstantAck}, nil, is("InstantAck is added before"), true},
		"InstantAck inside":      {nil, chain{wmmiddleware.InstantAck}, nil, false},
		"Deduplicator outside":   {chain{deduplicator}, nil, is("Deduplicator is added before"), true},
		"Deduplicator inside":    {nil, chain{deduplicator}, is("Deduplicator is added after"), true},
		"Duplicator outside":     {chain{wmmiddleware.Duplicator}, nil, is("Duplicator is added before"), true},
		"Duplicator inside":      {nil, chain{wmmiddleware.Duplicator}, nil, false},
		"CircuitBreaker outside": {chain{breaker}, nil, is("CircuitBreaker is added before"), false},
		"CircuitBreaker inside":  {nil, chain{breaker}, nil, false},
		"IgnoreErrors outside":   {chain{ignore}, nil, is("IgnoreErrors is added before"), false},
		"IgnoreErrors inside":    {nil, chain{ignore}, nil, false},
		"DelayOnError outside":   {chain{delay}, nil, is("DelayOnError is added before"), false},
		"DelayOnError inside":    {nil, chain{delay}, nil, false},
		"twice outside":          {chain{retry, timeout, retry}, nil, is("Retry is added before"), false},
		"on either side of ours": {chain{retry}, chain{poison},
			is("PoisonQueue is added after", "Retry is added before"), false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, mode := range []bool{false, true} {
				logger := watermill.NewCaptureLogger()
				engine := &engine.Engine{Logger: logger, LogOrder: mode}
				ours := Retry{Of: engine}.Middleware

				last := run(t, engine, 2, fails, slices.Concat(test.outside, chain{ours}, test.inside)...)

				var got []string
				for _, m := range logger.Captured()[watermill.ErrorLogLevel] {
					var mistake *OrderError
					if errors.As(m.Err, &mistake) {
						got = append(got, strings.TrimPrefix(mistake.Middleware, "Watermill's ")+" is "+
							strings.Join(strings.Fields(mistake.Problem)[:2], " "))
						assert.NotEmpty(t, mistake.Remedy)
						isBefore := strings.HasPrefix(mistake.Problem, "added before")
						assert.Equal(t, isBefore, mistake.Handler == "handler")
					}
				}
				assert.Equal(t, test.want, got, "each mistake is told once")
				refused := errors.As(last.refused, new(*OrderError))
				assert.Equal(t, test.loses && !mode, refused, "log only: %t", mode)
			}
		})
	}
}

// What is harmless with the retrier's own subscriber can lose messages on a stock one, whose
// deliveries cannot be refused.
func TestOrderOfMiddlewaresOnStockSubscribers(t *testing.T) {
	logger := watermill.NewCaptureLogger()
	d := &played{engine: &engine.Engine{Logger: logger}, settled: make(chan *engine.Settlement, 1)}
	policy := config.Default()
	d.Arrive(&policy, &wire.State{})
	msg := message.NewMessage("", nil)
	msg.SetContext(engine.WithDelivery(context.Background(), stockDelivery{d}))

	ours := Retry{}.Middleware
	_, err := ours(apply(wmmiddleware.InstantAck, func(*message.Message) ([]*message.Message, error) {
		return nil, errors.New("boom")
	}))(msg)
	require.NoError(t, err)
	assert.Len(t, d.settled, 1, "it is handled all the same")
	require.Len(t, logger.Captured()[watermill.ErrorLogLevel], 1)
	assert.ErrorContains(t, logger.Captured()[watermill.ErrorLogLevel][0].Err, "InstantAck is added after "+
		"retrier.Middleware, on a stock subscriber")
}

// The names of the functions on the stack end with the router's.
func TestStackHasTheRouter(t *testing.T) {
	var stack []string
	run(t, &engine.Engine{}, 1, func(*message.Message) error {
		stack = callers()
		return nil
	})
	assert.Empty(t, order.Outside(slices.Concat(stack,
		[]string{"github.com/ThreeDotsLabs/watermill/message/router/middleware.Retry.Middleware.func1"})))
	assert.NotEmpty(t, order.Outside(
		[]string{"github.com/ThreeDotsLabs/watermill/message/router/middleware.Retry.Middleware.func1"}))
}

// apply calls a middleware as a router does: the compiler does not inline it, which would change
// names.
//
//go:noinline
func apply(m message.HandlerMiddleware, h message.HandlerFunc) message.HandlerFunc { return m(h) }

// A failure knows where it happened from what the router puts into the context.
func TestFailureInARouter(t *testing.T) {
	var letter retry.Event
	engine := &engine.Engine{OnEvent: func(e retry.Event) { letter = e }}

	s := run(t, engine, 1, fails, Poison{}.Middleware)
	assert.Equal(t, "topic", s.State.Topic)
	assert.Equal(t, "handler", s.State.Handler)
	assert.Equal(t, "gochannel.GoChannel", s.State.Subscriber)

	s.Done(nil)
	assert.Equal(t, "topic", letter.Topic)
	assert.Equal(t, "handler", letter.Handler)
}
