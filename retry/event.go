package retry

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// EventKind says what has happened.
type EventKind string

// The kinds of events about a message. A call of a handler begins with EventCall and ends with
// exactly one of EventSucceeded, EventFailed and EventRequeued; an attempt has several calls where
// a policy has immediate tries. A message that no handler may see is told of with EventUnhandled.
// EventFailed and EventUnhandled are followed by what was done about them: by exactly one of
// EventRetried, EventPostponed, EventDeadLettered, EventDropped and EventAbandoned, or, where the
// verdict is to call the handler again at once, by the next EventCall, unless a shutdown comes in
// between.
const (
	// EventCall fires before a handler is called.
	EventCall EventKind = "call"
	// EventSucceeded fires when the handler has succeeded and its outputs are published: the
	// message is being acknowledged. On a stock subscriber it fires when the handler has returned.
	EventSucceeded EventKind = "succeeded"
	// EventFailed fires when it is decided what is to happen after a failed call, or one that
	// postpones: see Class, Err and Verdict. A shutdown is none.
	EventFailed EventKind = "failed"
	// EventUnhandled fires when it is decided what is to happen to a message that no handler may
	// see: it cannot be decoded, its consumers die of it, it has expired, or it is not due yet and
	// goes on waiting. With a processor, no handler is here: a consumer elsewhere has rejected it.
	EventUnhandled EventKind = "unhandled"
	// EventRequeued fires when a call ends uncounted and the message goes back to its queue: a
	// shutdown, a lost connection.
	EventRequeued EventKind = "requeued"
	// EventRetried fires when the broker has confirmed the copy that waits for its retry.
	EventRetried EventKind = "retried"
	// EventPostponed fires when the broker has confirmed the copy of a message that waits without
	// having used up an attempt.
	EventPostponed EventKind = "postponed"
	// EventDeadLettered fires when the broker has confirmed the copy in the dead-letter queue: the
	// place for an alarm.
	EventDeadLettered EventKind = "dead-lettered"
	// EventDropped fires when a message is acknowledged without a copy, because its error or its
	// policy says so.
	EventDropped EventKind = "dropped"
	// EventAbandoned fires when a copy was given up, because the channel of its delivery is gone or
	// the retrier is closing: the broker delivers the message again, and what failed is not
	// counted.
	EventAbandoned EventKind = "abandoned"
	// EventSetAside fires when a handler that is fed from a dead-letter queue has failed: its
	// message stays there, and is handed out again after Took. Err is its error. Dead letters have
	// no other events.
	EventSetAside EventKind = "set-aside"
	// EventWithdrawn fires when a handler still runs 10 s after the broker has taken its delivery
	// back: a lost connection, or the consumer timeout. The message comes again, so it may be
	// handled twice at a time. Took is how long the handler has run. It keeps its place: less is
	// consumed until it returns.
	EventWithdrawn EventKind = "withdrawn"
)

// The kinds of events about queues and connections.
const (
	// EventHeld fires when failed deliveries of a queue are held for longer than
	// Options.HoldWarning, because the broker does not confirm their copies, and again after each
	// such time: see Held and Err, a *HeldError.
	EventHeld EventKind = "held"
	// EventReleased fires when none of a queue's failed deliveries waits any more, after EventHeld.
	EventReleased EventKind = "released"
	// EventTopologyDeclared fires when the topology of a topic was declared: by Subscribe, and
	// again after each reconnect.
	EventTopologyDeclared EventKind = "topology-declared"
	// EventTopologyRepaired fires when the retry topology of a queue, or what a delayed message
	// waits in, was declared again because a part of it was missing.
	EventTopologyRepaired EventKind = "topology-repaired"
	// EventReturnedEarly fires when a message has come back to its Queue before its delay was over,
	// as a policy of the broker can make it: Took is how long it was away, and Err says why that
	// may be. It goes to wait again.
	EventReturnedEarly EventKind = "returned-early"
	// EventConsuming fires when a subscription of the retrier's own subscriber has begun to
	// consume, also after each reconnect.
	EventConsuming EventKind = "consuming"
	// EventStoppedConsuming fires when it has stopped.
	EventStoppedConsuming EventKind = "stopped-consuming"
	// EventConnected fires for each connection that is opened: the first one, and each after a
	// loss. See Connection.
	EventConnected EventKind = "connected"
	// EventDisconnected fires when a connection is lost, with the Err; a Close is no loss.
	EventDisconnected EventKind = "disconnected"
	// EventBlocked fires when the broker blocks a connection, for a memory or disk alarm.
	EventBlocked EventKind = "blocked"
	// EventUnblocked fires when the alarm is over.
	EventUnblocked EventKind = "unblocked"
)

// Event tells of something that has happened.
//
// OnEvent gets them all. It is passive: what it does changes nothing, and a panic in it is logged.
// It is called in the middle of the work: it must return, and soon, and must not call the retrier
// (a goroutine of its own may). It must be safe for concurrent use: the events of one delivery come
// one after the other and in order, those of others at the same time.
type Event struct {
	// Kind tells what has happened.
	Kind EventKind
	// At is when it has happened.
	At time.Time

	// Topic that was subscribed to, its Queue, and the Handler's name: where the event is about
	// one.
	Topic   string
	Queue   string
	Handler string
	// DeadLetters tells that it is about a subscription to the dead letters of the topic, and not
	// to the topic itself: Queue is the dead-letter queue.
	DeadLetters bool

	// Message is the message as the handler has it: not to be kept or changed. Where no handler saw
	// it (undecodable, crashed), or one still has it (requeued, as a close has waited long enough),
	// it is what could be made of the delivery: its payload, its string headers, its id.
	Message *message.Message
	// Attempt is where the message stood when the call began.
	Attempt Attempt
	// Calls of a handler over all lives of the message, with this one if it has ended.
	Calls int
	// Class of a failure, from EventFailed and EventUnhandled on.
	Class Class
	// Verdict over a message: what is to be done, with EventFailed and EventUnhandled; what was
	// done, with the events after them.
	Verdict Verdict
	// Err is the error itself, with a text that nobody has redacted; that of a failure also with
	// the events after it.
	Err error
	// Cause of a failure, from EventFailed and EventUnhandled on: what its dead letter tells, and
	// its fingerprint. nil where nothing has failed, as for a message that is postponed. It is
	// shared: not to be changed.
	Cause *Cause
	// Took is how long it took: a call of a handler; what was done about a failure, since it was
	// decided, which is how long the broker took to confirm the copy. With EventHeld, how long the
	// copy that it reports has been waiting.
	Took time.Duration

	// Held is how many failed deliveries of the queue wait for their copies to be confirmed.
	Held int

	// Connection is which: "subscriber", "dead-letter subscriber", "groups", which all subscribers
	// of consumer groups share, "forwarder", which publishes the copies, "publisher", "delay
	// publisher", "observer", which looks at queue depths, "processor", which consumes from failed
	// queues, or "declarer", which declares for it.
	Connection string
}
