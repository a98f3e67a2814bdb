package protect

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// The defaults and bounds of a [DeduplicatorConfig].
const (
	defaultWindow   = time.Minute // as in Watermill's
	minWindow       = time.Millisecond
	defaultMaxKeys  = 100_000
	defaultPostpone = time.Second
	defaultLease    = time.Minute
	minLease        = 100 * time.Millisecond
	defaultTimeout  = 5 * time.Second
)

// ErrInFlight is the cause of a message that is postponed because one with the same key is being
// handled.
var ErrInFlight = errors.New("a message with the same key is being handled")

// DeduplicatorConfig says what a duplicate is.
type DeduplicatorConfig struct {
	// KeyFactory gives messages that are the same the same key: one of Watermill's hashers, or any
	// function. An empty key is none: its message is handled. [KeyByUUID] by default. Where
	// publishers send the same thing twice under two UUIDs, take what is the same in both:
	//
	//	KeyFactory: wmmiddleware.NewMessageHasherFromMetadataField("order_id")
	//	KeyFactory: wmmiddleware.NewMessageHasherSHA256(math.MaxInt64) // equal payloads are one message
	KeyFactory wmmiddleware.MessageHasher
	// Postpone is how long a message is postponed while one with the same key is being handled, or
	// while the Inbox does not answer. One second by default.
	Postpone time.Duration

	// Window is how long a key is remembered after its message was handled. One minute by default.
	// Without Inbox only.
	Window time.Duration
	// MaxKeys is how many keys each handler remembers; the oldest are forgotten first, and their
	// duplicates handled. 100,000 by default. Without Inbox only.
	MaxKeys int

	// Inbox is the store that remembers which messages were handled, for all instances of a service
	// and over restarts. How long it remembers them is its own setting. The memory of this process
	// by default.
	Inbox store.Inbox
	// Name is put before the names of handlers in the Inbox. Services that share a server, a queue
	// and names of handlers need it. With Inbox only.
	Name string
	// Lease is how long a message stays with a process that has died. While the handler runs the
	// lease is renewed, so it may run longer. One minute by default, at least 100ms. With Inbox
	// only.
	Lease time.Duration
	// Timeout is how long the Inbox may take to answer, half a Lease at most. Five seconds by
	// default. With Inbox only.
	Timeout time.Duration
	// HandleReplays calls the handler for a message that is Done in the Inbox when it was replayed
	// from a dead-letter queue. By default such a message is acknowledged, as any other that is
	// Done. With Inbox only: without one replays are always handled.
	HandleReplays bool
	// OnError is called with each error that no message can carry: a [*StoreError]. It must not
	// block.
	OnError func(error)
	// Logger gets the same errors.
	Logger watermill.LoggerAdapter
}

// Validate reports all problems in one error, as joined [*config.FieldError]s. The zero value is
// valid.
func (c DeduplicatorConfig) Validate() error {
	p := problems{path: "DeduplicatorConfig."}
	if c.Window != 0 && c.Window < minWindow {
		p.add("Window", "too short", "at least "+minWindow.String()+", or 0 for "+defaultWindow.String(),
			c.Window.String())
	}
	if c.MaxKeys < 0 {
		p.add("MaxKeys", "negative", "1 or more, or 0 for "+strconv.Itoa(defaultMaxKeys), strconv.Itoa(c.MaxKeys))
	}
	p.notNegative("Postpone", c.Postpone)
	p.notNegative("Timeout", c.Timeout)
	if c.Lease != 0 && c.Lease < minLease {
		p.add("Lease", "too short", "at least "+minLease.String()+", or 0 for "+defaultLease.String(), c.Lease.String())
	}
	p.notNilPointer("Inbox", c.Inbox, "a store, or nil for the memory of this process")
	if c.Inbox != nil {
		p.unused(c.Window > 0, "Window", "with an Inbox, which has its own retention", "0", c.Window.String())
		p.unused(c.MaxKeys > 0, "MaxKeys", "with an Inbox, which has its own size", "0", strconv.Itoa(c.MaxKeys))
	} else {
		p.unused(c.Name != "", "Name", "without an Inbox", `""`, strconv.Quote(c.Name))
		p.unused(c.Lease >= minLease, "Lease", "without an Inbox", "0", c.Lease.String())
		p.unused(c.Timeout > 0, "Timeout", "without an Inbox", "0", c.Timeout.String())
		p.unused(c.HandleReplays, "HandleReplays", "without an Inbox: replays are always handled", "false", "true")
	}

	return errors.Join(p.errs...)
}

// Deduplicator acknowledges messages without calling their handler again when one with the same key
// was handled.
//
// It does what Watermill's middleware of this name does, and loses nothing: a message counts as
// handled when its handler has succeeded and its outputs are published, and not before. So a
// message that failed comes through when it is retried, postponed, replayed, or delivered again
// after a lost connection. Two with the same key are not handled at a time: the second is postponed
// until it is known what became of the first.
//
// With an Inbox, all instances of a service know what was handled, and so does the next process.
// The handler is still called twice when a process dies after the effect and before the Inbox
// knows: [Transactional] closes that window for effects in a database.
//
// It belongs right inside of the retry middleware. A handler that one Deduplicator wraps twice, as
// for the router and for the handler, is wrapped once.
type Deduplicator struct {
	config DeduplicatorConfig
	reporter

	mu      sync.Mutex
	running map[callID]<-chan struct{} // the acknowledgements of deliveries whose handlers run
	calls   map[callID]*inboxCall      // of messages that the router has not answered
	pending int                        // calls whose handler has succeeded, not yet committed
	idle    chan struct{}              // closed when there are none, if somebody waits for that
}

// NewDeduplicator makes a Deduplicator.
func NewDeduplicator(c DeduplicatorConfig) (*Deduplicator, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.KeyFactory == nil {
		c.KeyFactory = KeyByUUID
	}
	c.Window = cmp.Or(c.Window, defaultWindow)
	c.MaxKeys = cmp.Or(c.MaxKeys, defaultMaxKeys)
	c.Postpone = cmp.Or(c.Postpone, defaultPostpone)
	c.Lease = cmp.Or(c.Lease, defaultLease)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)

	return &Deduplicator{
		config: c, reporter: reporter{onError: c.OnError, logger: c.Logger},
		running: map[callID]<-chan struct{}{}, calls: map[callID]*inboxCall{},
	}, nil
}

// Middleware wraps a handler. Without Inbox it has a memory of its own: handlers of the same
// messages do not take them away from each other. In an Inbox they have their names.
func (d *Deduplicator) Middleware(h message.HandlerFunc) message.HandlerFunc {
	handled := d.inMemory(h)
	if d.config.Inbox != nil {
		handled = func(msg *message.Message, key string) ([]*message.Message, error) { return d.inInbox(h, msg, key) }
	}

	return func(msg *message.Message) ([]*message.Message, error) {
		key, err := d.config.KeyFactory(msg)
		if err != nil {
			return nil, err
		}
		if key == "" {
			return h(msg)
		}

		return handled(msg, key)
	}
}

// inMemory handles messages with the memory of this process.
func (d *Deduplicator) inMemory(h message.HandlerFunc) func(*message.Message, string) ([]*message.Message, error) {
	seen := newMemory(d.config.Window, d.config.MaxKeys)

	return func(msg *message.Message, key string) ([]*message.Message, error) {
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
		engine.MarkHandled(ctx, c.mark)
	}

	return produced, err
}

// admits tells which messages are handled although one with their key is, or was.
func admits(ctx context.Context) func(before callState, mark string) bool {
	attempt, ok := postponable(ctx)
	handled := engine.HandledMark(ctx)

	return func(before callState, mark string) bool {
		if before == callInFlight {
			return !ok // better twice than never, where it cannot wait
		}

		// A replay is wanted by who made it. And what has the mark of that success was that
		// success: a middleware between the retry middleware and this one has made a failure of it.
		return attempt.Replays > 0 || handled == mark
	}
}
