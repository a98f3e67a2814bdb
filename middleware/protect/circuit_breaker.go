package protect

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/sony/gobreaker"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
	"github.com/amqpretry/watermill-retry/retry"
)

// defaultBreakerTimeout is gobreaker's own: how long a breaker stays open where its settings do not
// say.
const defaultBreakerTimeout = time.Minute

// CircuitBreakerConfig says when the breakers open and for how long.
type CircuitBreakerConfig struct {
	// Settings of each breaker. Their Name is the handler's by default, and [IsSuccessful] their
	// IsSuccessful. gobreaker calls the functions with its lock held: they must not block, nor ask
	// the breaker.
	Settings gobreaker.Settings
	// Postpone is how long a message is postponed that meets an open breaker. Settings.Timeout by
	// default.
	Postpone time.Duration

	// Shared keeps the state of the breakers for all instances of a service: where one has seen a
	// dependency fail, all leave it alone, and together they try it again with MaxRequests calls.
	// By default each instance has breakers of its own, and so has each while Shared does not
	// answer. ReadyToTrip can then be called several times for one failure, and OnStateChange is
	// called in the instance that has changed the state.
	Shared store.Values
	// Name is put before the names of breakers in Shared. Services that share a server need it.
	Name string
	// OnError is called with a [*StoreError] when Shared does not answer. It must not block.
	OnError func(error)
	// Logger gets the same errors, one in 10 seconds at most.
	Logger watermill.LoggerAdapter
}

// Validate reports all problems in one error, as joined [*config.FieldError]s. The zero value is
// valid.
func (c CircuitBreakerConfig) Validate() error {
	p := problems{path: "CircuitBreakerConfig."}
	p.notNegative("Postpone", c.Postpone)
	p.notNegative("Settings.Timeout", c.Settings.Timeout)
	p.notNegative("Settings.Interval", c.Settings.Interval)
	p.notNilPointer("Shared", c.Shared, "a store, or nil for breakers in this process")

	return errors.Join(p.errs...)
}

// CircuitBreaker postpones messages instead of trying them, while what their handler depends on is
// down. Each handler has a breaker of its own, which is Watermill's, or one that instances share.
type CircuitBreaker struct {
	config CircuitBreakerConfig
	reporter
}

// NewCircuitBreaker makes a CircuitBreaker.
func NewCircuitBreaker(c CircuitBreakerConfig) (*CircuitBreaker, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.Postpone = cmp.Or(c.Postpone, c.Settings.Timeout, defaultBreakerTimeout)

	return &CircuitBreaker{config: c, reporter: reporter{onError: c.OnError, logger: c.Logger}}, nil
}

// Middleware wraps a handler with a breaker of its own.
func (c *CircuitBreaker) Middleware(h message.HandlerFunc) message.HandlerFunc {
	// Only a message tells the handler's name, so the breaker is made with the first.
	var once sync.Once
	var guarded message.HandlerFunc
	guard := func(handler string) {
		settings, h := c.settings(handler), reported(h)
		own := wmmiddleware.NewCircuitBreaker(settings).Middleware(h)
		if c.config.Shared != nil {
			own = newSharedBreaker(c.config, settings, c.reportOften).guard(h, own)
		}
		guarded = refused(c.config.Postpone)(own)
	}

	return func(msg *message.Message) ([]*message.Message, error) {
		once.Do(func() { guard(message.HandlerNameFromCtx(msg.Context())) })

		// The goexit has done its work; without a panic, the goroutine goes on with its end.
		defer func() {
			if value := recover(); value != nil {
				if _, ok := value.(*goexit); !ok {
					panic(value)
				}
			}
		}()

		return guarded(msg)
	}
}

// refused postpones what the breaker has not let pass.
func refused(d time.Duration) message.HandlerMiddleware {
	return PostponeOn(d, config.Is(gobreaker.ErrOpenState), config.Is(gobreaker.ErrTooManyRequests))
}

func (c *CircuitBreaker) settings(handler string) gobreaker.Settings {
	s := c.config.Settings
	s.Name = cmp.Or(s.Name, handler)

	isSuccessful := s.IsSuccessful
	if isSuccessful == nil {
		isSuccessful = IsSuccessful
	}
	s.IsSuccessful = func(err error) bool {
		_, ok := err.(*withdrawnError) //nolint:errorlint // nobody comes between that could wrap it

		return ok || isSuccessful(err)
	}

	return s
}

// IsSuccessful tells whether the outcome of a handler says nothing against what it depends on: it
// succeeded, or has said that the message is at fault, or too early (Permanent, Drop, Postpone,
// Retryable() false). It is what breakers ask by default, and for the IsSuccessful of
// gobreaker.Settings elsewhere. It knows no policy: what its lists say of errors is asked with
// [retry.Classify].
func IsSuccessful(err error) (successful bool) {
	if err == nil {
		return true
	}
	defer func() { _ = recover() }() // of an error that cannot be looked at: a failure like any other

	switch class, _ := engine.Classify(&config.Policy{}, retry.ClassError, err); class {
	case retry.ClassPermanent, retry.ClassDrop, retry.ClassPostponed:
		return true
	default:
		return false
	}
}

// reported wraps a handler so that the breaker learns of each end that a call can have, and only of
// those that mean something.
func reported(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (produced []*message.Message, err error) {
		ctx, returned := msg.Context(), false
		defer func() {
			if returned {
				return
			}
			if value := recover(); value != nil {
				panic(value)
			}
			// A breaker waits for the end of each call that it lets pass. While half-open, it would
			// wait for ever for that of a goroutine that has ended itself.
			panic(&goexit{})
		}()

		produced, err = h(msg)
		returned = true
		if err != nil && withdrawn(ctx) {
			err = &withdrawnError{err}
		}

		return produced, err
	}
}

// withdrawn tells whether a message was taken away from its handler. A context alone does not tell:
// Watermill's Timeout leaves an ended one on the message for the next try. That of a message of
// others is all there is; there, the end of a Timeout has an error of its own.
func withdrawn(ctx context.Context) bool {
	if _, ours := retry.AttemptFromContext(ctx); ours {
		return engine.Withdrawn(ctx)
	}

	return errors.Is(ctx.Err(), context.Canceled)
}

// withdrawnError is what a handler returned when its message had been taken away: with the
// connection, all that are in flight at once, which says nothing of what the handlers depend on.
type withdrawnError struct{ error }

func (e *withdrawnError) Unwrap() error { return e.error }

// goexit is what a breaker sees of a handler that ends its goroutine.
type goexit struct{}
