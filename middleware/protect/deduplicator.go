package protect

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/amqpretry/watermill-retry/retry"
)

// The defaults and bounds of a [DeduplicatorConfig].
const (
	DefaultWindow   = time.Minute // as in Watermill's
	MinWindow       = time.Millisecond
	DefaultMaxKeys  = 100_000
	DefaultPostpone = time.Second
)

// ErrInFlight is the cause of a message that is postponed because one with the same key is being handled.
var ErrInFlight = errors.New("a message with the same key is being handled")

// DeduplicatorConfig says what a duplicate is.
type DeduplicatorConfig struct {
	// KeyFactory gives messages that are the same the same key: one of Watermill's hashers, or any function. An empty
	// key is none: its message is handled. The SHA-256 of the payload by default, so that two messages with equal
	// payloads are taken for one; where they are not, give the messages an id:
	//
	//	KeyFactory: wmmiddleware.NewMessageHasherFromMetadataField("order_id")
	KeyFactory wmmiddleware.MessageHasher
	// Window is how long a key is remembered after its message was handled. [DefaultWindow] by default.
	Window time.Duration
	// MaxKeys is how many keys each handler remembers; the oldest are forgotten first, and their duplicates handled.
	// [DefaultMaxKeys] by default.
	MaxKeys int
	// Postpone is how long a message is postponed while one with the same key is being handled. [DefaultPostpone] by
	// default.
	Postpone time.Duration
}

// Validate reports everything that is wrong at once, as joined [*config.FieldError]s. The zero value is valid.
func (c DeduplicatorConfig) Validate() error {
	p := problems{path: "DeduplicatorConfig."}
	if c.Window != 0 && c.Window < MinWindow {
		p.add("Window", "too short", "at least "+MinWindow.String()+", or 0 for "+DefaultWindow.String(),
			c.Window.String())
	}
	if c.MaxKeys < 0 {
		p.add("MaxKeys", "negative", "1 or more, or 0 for "+strconv.Itoa(DefaultMaxKeys), strconv.Itoa(c.MaxKeys))
	}
	p.notNegative("Postpone", c.Postpone)

	return errors.Join(p.errs...)
}

// Deduplicator acknowledges messages without calling their handler again when one with the same key was handled a
// moment ago.
//
// It does what Watermill's middleware of this name does, and loses nothing: a message counts as handled when its
// handler has succeeded and its outputs are published, and not before. So a message that failed comes through when it
// is retried, postponed, replayed, or delivered again after a lost connection. Two with the same key are not handled at
// a time: the second is postponed until it is known what became of the first.
//
// It belongs right inside of the retry middleware.
type Deduplicator struct {
	config DeduplicatorConfig
}

// NewDeduplicator makes a Deduplicator.
func NewDeduplicator(c DeduplicatorConfig) (*Deduplicator, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.KeyFactory == nil {
		c.KeyFactory = wmmiddleware.NewMessageHasherSHA256(math.MaxInt64)
	}
	c.Window = cmp.Or(c.Window, DefaultWindow)
	c.MaxKeys = cmp.Or(c.MaxKeys, DefaultMaxKeys)
	c.Postpone = cmp.Or(c.Postpone, DefaultPostpone)

	return &Deduplicator{config: c}, nil
}

// Middleware wraps a handler with a memory of its own: handlers of the same messages do not take them away from each
// other.
func (d *Deduplicator) Middleware(h message.HandlerFunc) message.HandlerFunc {
	seen := newMemory(d.config.Window, d.config.MaxKeys)

	return func(msg *message.Message) ([]*message.Message, error) {
		key, err := d.config.KeyFactory(msg)
		if err != nil {
			return nil, err
		}
		if key == "" {
			return h(msg)
		}

		call, before := seen.begin(key, msg, admits(msg.Context()))
		switch {
		case call != nil:
			return handle(h, msg, seen, call)
		case before == callHandled:
			return nil, nil
		default:
			return nil, postponed(msg.Context(), ErrInFlight, d.config.Postpone)
		}
	}
}

// handle calls the handler, and tells how that ended: also if by a panic.
func handle(h message.HandlerFunc, msg *message.Message, seen *memory, c *call) ([]*message.Message, error) {
	ctx, succeeded := msg.Context(), false
	defer func() { seen.end(c, succeeded) }()

	produced, err := h(msg)
	if succeeded = err == nil; succeeded {
		retry.MarkHandled(ctx, c.mark)
	}

	return produced, err
}

// admits tells which messages are handled although one with their key is, or was.
func admits(ctx context.Context) func(before callState, mark string) bool {
	attempt, ok := postponable(ctx)
	handled := retry.HandledMark(ctx)

	return func(before callState, mark string) bool {
		if before == callInFlight {
			return !ok // better twice than never, where it cannot wait
		}

		// A replay is wanted by who made it. And what has the mark of that success was that success: a middleware
		// between the retry middleware and this one has made a failure of it.
		return attempt.Replays > 0 || handled == mark
	}
}
