package protect_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/retry"
)

var (
	errBoom    = errors.New("boom")
	twoRetries = config.Policy{Delays: []time.Duration{time.Second, 5 * time.Second}}
	noRetries  = config.Policy{Mode: config.ModeDeadLetter}
)

// delivery plays the broker's side and keeps what it is told.
type delivery struct {
	engine.Delivery // what is not played

	engine    *engine.Engine
	policy    config.Policy
	state     wire.State
	withdrawn bool
	succeeded bool
	settled   []retry.Verdict
	copied    wire.State // what the last copy carries
}

func (d *delivery) Engine() *engine.Engine               { return d.engine }
func (d *delivery) Queue() string                        { return "orders" }
func (d *delivery) Policy() *config.Policy               { return &d.policy }
func (d *delivery) State() *wire.State                   { return &d.state }
func (d *delivery) Advance(s wire.State)                 { d.state = s }
func (d *delivery) Narrow(p config.Policy)               { d.policy = p }
func (d *delivery) Begin(time.Time, *retry.Event) bool   { return true }
func (d *delivery) End() (time.Time, *retry.Event, bool) { return time.Time{}, nil, false }
func (d *delivery) Enter(string)                         {}
func (d *delivery) Leave()                               {}
func (d *delivery) Withdrawn() bool                      { return d.withdrawn }
func (d *delivery) NeedsCopy() bool                      { return false }
func (d *delivery) Succeeded()                           { d.succeeded = true }

func (d *delivery) Settle(_ context.Context, s *engine.Settlement) error {
	d.settled, d.copied = append(d.settled, s.Verdict), s.State
	return nil
}

func newDelivery(policy config.Policy) *delivery {
	return &delivery{engine: &engine.Engine{}, policy: policy, state: wire.State{Queue: "orders"}}
}

// newMessage is a message of the retrier, with the payload that its UUID is made of.
func newMessage(d *delivery, payload string) *message.Message {
	msg := message.NewMessage("uuid of "+payload, []byte(payload))
	msg.SetContext(engine.WithDelivery(context.Background(), d))

	return msg
}

// fresh is a message under the usual policy.
func fresh() *message.Message { return newMessage(newDelivery(twoRetries), "payload") }

// cancellable gives a message a context that ends when cancel is called.
func cancellable(msg *message.Message) (_ *message.Message, cancel context.CancelFunc) {
	ctx, cancel := context.WithCancel(msg.Context())
	msg.SetContext(ctx)

	return msg, cancel
}

// replay is a fresh message that comes back from the dead-letter queue.
func replay() *message.Message {
	d := newDelivery(twoRetries)
	d.state.Replays = 1

	return newMessage(d, "payload")
}

// does is a handler without outputs.
func does(f func(*message.Message) error) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) { return nil, f(msg) }
}

// retried puts a handler under the retry middleware.
func retried(h message.HandlerFunc) message.HandlerFunc {
	return middleware.Retry{}.Middleware(h)
}

// handler counts its calls and returns what it is told to.
type handler struct {
	calls int
	err   error
}

func (h *handler) handle(*message.Message) ([]*message.Message, error) {
	h.calls++
	return nil, h.err
}

func call(h message.HandlerFunc, msg *message.Message) error {
	_, err := h(msg)
	return err
}

// postponedFor is how long an error postpones its message.
func postponedFor(t *testing.T, err error) time.Duration {
	t.Helper()
	class, after := engine.Classify(&config.Policy{}, retry.ClassError, err)
	require.Equal(t, retry.ClassPostponed, class, "%v", err)

	return after
}

// fields are the paths of what is wrong.
func fields(t *testing.T, err error) []string {
	t.Helper()
	var paths []string
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok, "%v", err)
	for _, err := range joined.Unwrap() {
		var f *config.FieldError
		require.ErrorAs(t, err, &f)
		assert.NotEmpty(t, f.Wanted)
		assert.NotEmpty(t, f.Found)
		paths = append(paths, f.Path)
	}

	return paths
}

// endsGoroutine calls f in a goroutine of its own and tells whether f ended that instead of
// returning, as a Goexit does.
func endsGoroutine(f func()) bool {
	ended := make(chan bool)
	go func() {
		returned := false
		defer func() { ended <- !returned }()
		f()
		returned = true
	}()

	return <-ended
}

// pointerError panics in the hands of whoever asks a nil pointer to it.
type pointerError struct{ cause error }

func (e *pointerError) Error() string { return e.cause.Error() }
func (e *pointerError) Unwrap() error { return e.cause }

// slow begins a call of a middleware whose handler waits until it is told how to end. It returns
// what ends it, and gives what the call has returned. It is for bubbles of synctest.
func slow(middle message.HandlerMiddleware, msg *message.Message) (end func(error) error) {
	result, ended := make(chan error), make(chan error)
	go func() { ended <- routed(middle(does(func(*message.Message) error { return <-result })), msg) }()
	synctest.Wait()

	return func(err error) error {
		result <- err

		return <-ended
	}
}

// wait lets time pass: that of a test's own clock.
func wait(d time.Duration) { <-time.After(d) }
