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
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// delivery is one that takes every settlement, and a refusal as the plug's own do.
type delivery struct {
	Standing
	settled chan Settlement
	refused error
}

// stockDelivery is one without a refusal.
type stockDelivery struct{ Delivery }

func (*delivery) Owner() any      { return "plug" }
func (*delivery) Queue() string   { return "queue" }
func (*delivery) Succeeded()      {}
func (*delivery) Enter()          {}
func (*delivery) Leave()          {}
func (*delivery) Withdrawn() bool { return false }
func (d *delivery) Refuse(err error) bool {
	d.refused = err
	return true
}

func (d *delivery) Settle(_ context.Context, s Settlement) error {
	d.settled <- s
	return nil
}

// outcome is what has become of the last message.
type outcome struct {
	Settlement
	refused error
}

// run handles messages in a router of Watermill with ours among its middlewares. One that is refused is acknowledged, as gochannel would redeliver it
// for ever.
func run(t *testing.T, messages int, handler message.NoPublishHandlerFunc, middlewares ...message.HandlerMiddleware) outcome {
	t.Helper()

	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 5 * time.Second}, watermill.NopLogger{})
	require.NoError(t, err)
	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})

	settled, refusals := make(chan Settlement, 2*messages), make(chan error, messages)
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			d := &delivery{settled: settled}
			policy := config.Default()
			d.Arrive(&policy, &wire.State{})
			msg.SetContext(WithDelivery(msg.Context(), d))
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
	// Each router gets one that has seen nothing yet: an open breaker outside ours would fail each message for ever.
	breaker := func(h message.HandlerFunc) message.HandlerFunc {
		var middleware message.HandlerMiddleware = wmmiddleware.NewCircuitBreaker(gobreaker.Settings{}).Middleware
		return apply(middleware, h)
	}
	deduplicator := func(h message.HandlerFunc) message.HandlerFunc {
		var middleware message.HandlerMiddleware = (&wmmiddleware.Deduplicator{}).Middleware
		return apply(middleware, h)
	}
	ignore := wmmiddleware.NewIgnoreErrors([]error{errors.New("other")}).Middleware
	delay := (&wmmiddleware.DelayOnError{InitialInterval: time.Second, MaxInterval: time.Second, Multiplier: 2}).Middleware
	throttle := wmmiddleware.NewThrottle(1000, time.Second).Middleware
	own := func(h message.HandlerFunc) message.HandlerFunc { return h }

	type chain = []message.HandlerMiddleware
	for name, test := range map[string]struct {
		outside, inside chain
		want            []string // what the log says of them
		loses           bool
	}{
		"ours alone":             {nil, nil, nil, false},
		"harmless ones outside":  {chain{wmmiddleware.Recoverer, timeout, wmmiddleware.CorrelationID, throttle, own}, nil, nil, false},
		"harmless ones inside":   {nil, chain{wmmiddleware.Recoverer, timeout, wmmiddleware.CorrelationID, throttle, own}, nil, false},
		"Retry outside":          {chain{retry}, nil, []string{"Retry is outside"}, false},
		"Retry far outside":      {chain{retry, timeout, wmmiddleware.Recoverer}, nil, []string{"Retry is outside"}, false},
		"Retry inside":           {nil, chain{retry}, nil, false},
		"PoisonQueue outside":    {chain{poisonQueue(t)}, nil, []string{"PoisonQueue is outside"}, false},
		"filtered outside":       {chain{filteredPoisonQueue(t)}, nil, []string{"PoisonQueue is outside"}, false},
		"PoisonQueue inside":     {nil, chain{poisonQueue(t)}, []string{"PoisonQueue is inside"}, false},
		"filtered inside":        {nil, chain{filteredPoisonQueue(t)}, []string{"PoisonQueue is inside"}, false},
		"both outside":           {chain{poisonQueue(t), retry}, nil, []string{"Retry is outside", "PoisonQueue is outside"}, false},
		"InstantAck outside":     {chain{wmmiddleware.InstantAck}, nil, []string{"InstantAck is outside"}, true},
		"InstantAck inside":      {nil, chain{wmmiddleware.InstantAck}, nil, false},
		"Deduplicator outside":   {chain{deduplicator}, nil, []string{"Deduplicator is outside"}, true},
		"Deduplicator inside":    {nil, chain{deduplicator}, []string{"Deduplicator is inside"}, true},
		"Duplicator outside":     {chain{wmmiddleware.Duplicator}, nil, []string{"Duplicator is outside"}, true},
		"Duplicator inside":      {nil, chain{wmmiddleware.Duplicator}, nil, false},
		"CircuitBreaker outside": {chain{breaker}, nil, []string{"CircuitBreaker is outside"}, false},
		"CircuitBreaker inside":  {nil, chain{breaker}, nil, false},
		"IgnoreErrors outside":   {chain{ignore}, nil, []string{"IgnoreErrors is outside"}, false},
		"IgnoreErrors inside":    {nil, chain{ignore}, nil, false},
		"DelayOnError outside":   {chain{delay}, nil, []string{"DelayOnError is outside"}, false},
		"DelayOnError inside":    {nil, chain{delay}, nil, false},
		"twice outside":          {chain{retry, timeout, retry}, nil, []string{"Retry is outside"}, false},
		"on either side of ours": {chain{retry}, chain{poisonQueue(t)}, []string{"PoisonQueue is inside", "Retry is outside"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, mode := range []OrderMode{"", OrderEnforce, OrderLog} {
				logger := watermill.NewCaptureLogger()
				ours := Retry{Poison{Owner: "plug", Logger: logger, Order: mode}}.Middleware

				last := run(t, 2, fails, slices.Concat(test.outside, chain{ours}, test.inside)...)

				var got []string
				for _, m := range logger.Captured()[watermill.ErrorLogLevel] {
					var mistake *OrderError
					if errors.As(m.Err, &mistake) {
						got = append(got, strings.TrimPrefix(mistake.Middleware, "Watermill's ")+" is "+strings.Fields(mistake.Problem)[0])
						assert.NotEmpty(t, mistake.Remedy)
						assert.Equal(t, strings.HasPrefix(mistake.Problem, "outside"), mistake.Handler == "handler")
					}
				}
				assert.Equal(t, test.want, got, "each mistake is told once")
				refused := errors.As(last.refused, new(*OrderError))
				assert.Equal(t, test.loses && mode != OrderLog, refused, "%q", mode)
			}
		})
	}
}

// What is harmless with the plug's own subscriber can lose messages on a stock one, whose deliveries cannot be refused.
func TestOrderOfMiddlewaresOnStockSubscribers(t *testing.T) {
	logger := watermill.NewCaptureLogger()
	d := &delivery{settled: make(chan Settlement, 1)}
	policy := config.Default()
	d.Arrive(&policy, &wire.State{})
	msg := message.NewMessage("", nil)
	msg.SetContext(WithDelivery(context.Background(), stockDelivery{d}))

	ours := Retry{Poison{Owner: "plug", Logger: logger}}.Middleware
	_, err := ours(apply(wmmiddleware.InstantAck, func(*message.Message) ([]*message.Message, error) { return nil, errors.New("boom") }))(msg)
	require.NoError(t, err)
	assert.Len(t, d.settled, 1, "it is handled all the same")
	require.Len(t, logger.Captured()[watermill.ErrorLogLevel], 1)
	assert.ErrorContains(t, logger.Captured()[watermill.ErrorLogLevel][0].Err, "InstantAck is inside of the retry middleware, on a stock subscriber")
}

func TestOuterOrderEndsAtTheRouter(t *testing.T) {
	middlewares := func(found []*OrderError) (names []string) {
		for _, e := range found {
			names = append(names, e.Middleware)
		}

		return names
	}
	assert.Equal(t, []string{"Watermill's Retry"}, middlewares(outerOrder([]string{
		watermillPrefix + "Retry.Middleware.func1", routerName, poisonQueuePrefix + "Middleware.func1",
	})))
	assert.Equal(t, []string{"a middleware of package protect"}, middlewares(outerOrder([]string{protectPrefix + "(*Deduplicator).Middleware.func1", routerName})))
	assert.Empty(t, outerOrder(nil))

	var stack []string
	run(t, 1, func(*message.Message) error {
		stack = callers()
		return nil
	})
	assert.Contains(t, stack, routerName)
}

func TestCheckOrder(t *testing.T) {
	const (
		ours, theirs = module + "amqpretry.(*Plug).Middleware-fm", module + "amqpretry/amqpretryv3.(*Plug).Poison-fm"
		retry, dedup = watermillPrefix + "Retry.Middleware-fm", watermillPrefix + "(*Deduplicator).Middleware-fm"
		ack, user    = watermillPrefix + "InstantAck", "example.com/shop/middleware.(*Deduplicator).Middleware-fm"
		breaker      = watermillPrefix + "CircuitBreaker.Middleware-fm"
		poison       = poisonQueuePrefix + "Middleware-fm"
	)
	for name, test := range map[string]struct {
		chain []string
		stock bool
		want  []string
	}{
		"none of ours":           {[]string{retry, dedup}, true, nil},
		"right":                  {[]string{user, ours, user, retry}, true, nil},
		"far inside":             {[]string{ours, user, dedup}, false, []string{"Watermill's Deduplicator"}},
		"outside":                {[]string{retry, user, ours}, false, []string{"Watermill's Retry"}},
		"between two plugs":      {[]string{ours, retry, user, theirs}, false, nil},
		"wrong for both":         {[]string{ours, dedup, theirs}, false, []string{"Watermill's Deduplicator"}},
		"as an error's end":      {[]string{ours, breaker, theirs}, false, nil},
		"stock only":             {[]string{ours, ack}, true, []string{"Watermill's InstantAck"}},
		"harmless with our own":  {[]string{ours, ack}, false, nil},
		"outside it loses both":  {[]string{ack, ours}, false, []string{"Watermill's InstantAck"}},
		"several":                {[]string{poison, retry, theirs, dedup}, false, []string{"Watermill's PoisonQueue", "Watermill's Retry", "Watermill's Deduplicator"}},
		"a possible one is told": {[]string{ours, poison}, false, []string{"Watermill's PoisonQueue"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, e := range CheckOrder(test.chain, test.stock) {
				got = append(got, e.Middleware)
				assert.Equal(t, name != "a possible one is told", e.Refused())
			}
			assert.Equal(t, test.want, got)
		})
	}
}

// apply calls a middleware as a router does: the compiler does not inline it, which would change names.
//
//go:noinline
func apply(m message.HandlerMiddleware, h message.HandlerFunc) message.HandlerFunc { return m(h) }

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
