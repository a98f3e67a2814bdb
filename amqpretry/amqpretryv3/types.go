package amqpretryv3

import (
	"github.com/amqpretry/watermill-retry/internal/plug"
	"github.com/amqpretry/watermill-retry/internal/transport"
)

// Options say what the plug does. The zero value is useful: every topic under config.Default.
//
//   - Policies: how often and after which delays messages are retried, per topic.
//   - Concurrency, Prefetch, CloseTimeout: how many messages are handed out at a time, how many the broker sends ahead, and how
//     long a close waits for them.
//   - Addresses: further nodes of the cluster.
//   - MiddlewareOrder: what happens to a router with a wrong order of middlewares.
//   - Topology, Names: who declares, and what the queues are called.
//   - Decide, ErrorText, PayloadText, PanicStacks: what becomes of a failure, and what is written down of it.
//   - Logger, OnEvent, HoldWarning: what is told, and when.
//
// docs/options.md has all fields with their defaults. The options are the same for all versions of watermill-amqp.
type Options = plug.Options

// Subscriber is the plug's own consumer: a message.Subscriber and message.SubscribeInitializer with a connection of its own that comes
// back by itself.
//
// It hands out as many messages of a subscription at a time as Options.Concurrency says, acknowledges in batches, settles
// the verdicts of the middleware, and closes gracefully: no message is handed out any more, handlers finish, copies are
// confirmed, everything is acknowledged.
type Subscriber = plug.Subscriber

// DeadLetterSubscriber feeds handlers from dead-letter queues: for an alarm that looks into the message, an archive, a repair.
//
// A handler finds in middleware.DeadLetterFromContext why its message has failed, and in the message what its own handler would
// have seen: its payload and metadata, with Watermill's four poison keys; what cannot be decoded comes as it is.
//
// A success takes the dead letter out of the queue for good. A failure leaves it there, whatever the error says: it is handed out again
// after a pause of 1s, 2s, 4s, up to 1m, and for ever, as there is no further queue for it to go to. Those behind it go on, while no
// more than 1,000 wait for their pause. The prefetch is that of the Subscriber, but at least 50. The retry middleware leaves these messages alone.
type DeadLetterSubscriber = plug.DeadLetterSubscriber

// TopologyMode says who declares.
type TopologyMode = plug.TopologyMode

const (
	// TopologyDeclare declares the main queue, as the config's own builder does, and the retry topology of its policy.
	TopologyDeclare = plug.TopologyDeclare
	// TopologyAssume declares nothing at all: somebody else has provisioned the main queues and the retry topology.
	TopologyAssume = plug.TopologyAssume
)

// Defaults of the options.
const (
	DefaultConcurrency  = plug.DefaultConcurrency
	DefaultCloseTimeout = plug.DefaultCloseTimeout
	DefaultHoldWarning  = plug.DefaultHoldWarning
	// DefaultPrefetch is the least that Options.Prefetch is by default. A stock subscriber gets it where its config has none,
	// which to the broker would mean no limit.
	DefaultPrefetch = plug.DefaultPrefetch
)

// ChannelsError says that a connection has no channel left for another subscription or for the copies of another main queue.
type ChannelsError = transport.ChannelsError

// HeldError reports failed deliveries whose copy the broker does not confirm. They are held unacknowledged, and nothing is
// lost; it says which queue and exchange to look at.
type HeldError = transport.HeldError

// NoAnswerError is what Subscribe and SubscribeInitialize give up with when the broker has not answered for 30 seconds (2 minutes
// while they declare), such as for a quorum queue without leader.
type NoAnswerError = transport.NoAnswerError

// SharedQueueError is returned by Subscribe when two topics share a queue under different policies: a message does not say
// for which topic it is in the queue, so only one policy can hold.
type SharedQueueError = plug.SharedQueueError

// NoMiddlewareError is what Plug.CheckRouter reports of a handler that is fed by a subscriber of the plug, and has no retry middleware.
type NoMiddlewareError = plug.NoMiddlewareError

// ProtectionError is returned by Subscribe when a main queue exists without the arguments of config.ProtectionArguments, which
// the broker cannot add to it. Unwrap reaches the *topology.ConflictError.
type ProtectionError = plug.ProtectionError

// ErrClosed is what a plug and its subscribers return after their Close.
var ErrClosed = transport.ErrClosed
