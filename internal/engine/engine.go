package engine

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/retry"
)

// Engine decides what happens to the messages of one retrier, and reports it: see [Classify] and
// [Decide] for how, and [Delivery] for what it knows of a message. Its zero value has the defaults.
// Engines are told apart by their addresses.
type Engine struct {
	// Logger gets what is logged. Defaults to slog.Default(); watermill.NopLogger{} logs nothing.
	Logger watermill.LoggerAdapter

	// LogOrder is for who wants a wrong order of middlewares to be logged, and not refused.
	LogOrder bool

	// Host is written on every failed message, to tell instances apart. Optional.
	Host string

	// Decide is asked about every failure, before the policy is: see [retry.Failure]. Optional. A
	// panic in it is logged, and the handler's own error is used.
	Decide func(retry.Failure) error

	// ErrorText makes the text that is written on a failed message and logged from a handler's
	// error: the place to redact. Defaults to the error's own text. A panic in it costs the text,
	// not the message.
	ErrorText func(error) string

	// PayloadText makes the text of a failed message's payload for the log, at most 2 KiB of which
	// are kept: the place to redact. Without it no payload is logged; none is ever written anywhere
	// else.
	PayloadText func(payload []byte) string

	// PanicStacks adds the stack to the error text of a panic. Off by default: stacks can show what
	// a dead letter should not.
	PanicStacks bool

	// Now is the clock; time.Now by default. For tests.
	Now func() time.Time

	// Random gives the random part of jitter, in [0, 1). For tests.
	Random func() float64

	// OnEvent is called with everything that happens: see [retry.Event]. Optional.
	OnEvent func(retry.Event)
}

// Log is the logger.
func (e *Engine) Log() watermill.LoggerAdapter {
	if e.Logger == nil {
		return watermill.NewSlogLogger(nil)
	}

	return e.Logger
}

// Time is the time by its clock.
func (e *Engine) Time() time.Time {
	if e.Now == nil {
		return time.Now()
	}

	return e.Now()
}

func (e *Engine) random() float64 {
	if e.Random == nil {
		return rand.Float64()
	}

	return e.Random()
}

// Snapshot returns what gives a message back what it had: a further try sees it as it arrived,
// whatever the one before has done.
func Snapshot(msg *message.Message) (restore func()) {
	uuid, metadata, payload := msg.UUID, maps.Clone(msg.Metadata), slices.Clone(msg.Payload)

	return func() {
		msg.UUID, msg.Metadata, msg.Payload = uuid, maps.Clone(metadata), slices.Clone(payload)
	}
}
