package middleware

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// EventKind says what has happened.
type EventKind string

// The kinds of events about a message. An attempt begins with EventAttempt and ends with exactly one of EventSucceeded,
// EventFailed and EventRequeued; immediate tries are attempts of their own here. A failure, or a handler that postpones, is followed by
// what was done about it: the next immediate try, EventRetried, EventPostponed, EventDeadLettered or EventDropped, or EventAbandoned. Messages that no handler may see
// have no EventAttempt: crashed and undecodable ones begin with EventFailed, and what has expired, or goes on waiting for a
// time that is longer than any delay, with what was done about it.
const (
	// EventAttempt fires before a handler is called.
	EventAttempt EventKind = "attempt"
	// EventSucceeded fires when the handler has succeeded and its outputs are published: the message is being acknowledged.
	// On a stock subscriber it fires when the handler has returned.
	EventSucceeded EventKind = "succeeded"
	// EventFailed fires when it is decided what is to happen after a failure: see Class, Err and Verdict. A shutdown is none.
	EventFailed EventKind = "failed"
	// EventRequeued fires when an attempt ends uncounted and the message goes back to its queue: a shutdown, a lost connection.
	EventRequeued EventKind = "requeued"
	// EventRetried fires when the broker has confirmed the copy that waits for its retry.
	EventRetried EventKind = "retried"
	// EventPostponed fires when the broker has confirmed the copy of a message that waits without having used up an attempt.
	EventPostponed EventKind = "postponed"
	// EventDeadLettered fires when the broker has confirmed the copy in the dead-letter queue: the place for an alarm.
	EventDeadLettered EventKind = "dead-lettered"
	// EventDropped fires when a message is acknowledged without a copy, because its error or its policy says so.
	EventDropped EventKind = "dropped"
	// EventAbandoned fires when a copy was given up, because the channel of its delivery is gone or the plug is closing: the
	// broker delivers the message again, and what failed is not counted.
	EventAbandoned EventKind = "abandoned"
)

// The kinds of events about queues and connections.
const (
	// EventHeld fires when failed deliveries of a queue are held for longer than Options.HoldWarning, because the broker does
	// not confirm their copies, and again after each such time: see Held and Err, a HeldError.
	EventHeld EventKind = "held"
	// EventReleased fires when none of a queue's failed deliveries waits any more, after EventHeld.
	EventReleased EventKind = "released"
	// EventTopologyDeclared fires when the topology of a topic was declared: by Subscribe, and again after each reconnect.
	EventTopologyDeclared EventKind = "topology-declared"
	// EventTopologyRepaired fires when the retry topology of a queue was declared again because a part of it was missing.
	EventTopologyRepaired EventKind = "topology-repaired"
	// EventConsuming fires when a subscription of the plug's own subscriber has begun to consume, also after each reconnect.
	EventConsuming EventKind = "consuming"
	// EventStoppedConsuming fires when it has stopped.
	EventStoppedConsuming EventKind = "stopped-consuming"
	// EventConnected fires for each connection that is opened: the first one, and each after a loss. See Connection.
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
// OnEvent gets them all. It is passive: what it does changes nothing, and a panic in it is logged. It must not block, as it is
// called in the middle of the work, and must be safe for concurrent use: the events of one message come one after the other and in
// order, those of others at the same time.
type Event struct {
	Kind EventKind
	At   time.Time

	// Topic that was subscribed to, the main Queue, and the Handler's name: where the event is about one.
	Topic   string
	Queue   string
	Handler string

	// Message is the message as the handler has it: not to be kept or changed. Where no handler saw it (undecodable, crashed), it
	// is what could be made of the delivery: its payload, its string headers, its id.
	Message *message.Message
	// Attempt is where the message stood when the attempt began.
	Attempt Attempt
	// Calls of a handler over all lives of the message, with this one if it has ended.
	Calls int
	// Class of a failure, from EventFailed on.
	Class Class
	// Verdict over a failure: what is to be done, with EventFailed; what was done, with the events after it.
	Verdict Verdict
	// Err is the error itself, with a text that nobody has redacted; that of a failure also with the events after it.
	Err error
	// Took is how long it took: an attempt, from the call of the handler; the events after a failure, from then on, which is how
	// long the broker took to confirm the copy. With EventHeld, how long the copy that it reports has been waiting.
	Took time.Duration

	// Held is how many failed deliveries of the queue wait for their copies to be confirmed.
	Held int

	// Connection is which: "subscriber" or "forwarder", which publishes the copies.
	Connection string
}

// Emit tells of an event, with the time of now.
func (p Poison) Emit(e Event) {
	if p.OnEvent == nil {
		return
	}

	defer func() {
		if r := recover(); r != nil {
			p.logger().Error("OnEvent panicked", fmt.Errorf("%v", r), watermill.LogFields{"event": string(e.Kind), "queue": e.Queue})
		}
	}()

	e.At = p.now()
	p.OnEvent(e)
}

// begin tells that an attempt begins, unless it has begun before: in a middleware outside of this one.
func (p Poison) begin(d Delivery, msg *message.Message) {
	if !d.Begin(p.now()) || p.OnEvent == nil {
		return
	}

	p.Emit(p.about(EventAttempt, d, msg))
}

// Ended tells that an attempt has ended without a failure, if there is one: kind is EventSucceeded or EventRequeued.
func (p Poison) Ended(kind EventKind, d Delivery, msg *message.Message) {
	began, ok := d.End()
	if !ok || p.OnEvent == nil {
		return
	}

	e := p.about(kind, d, msg)
	e.Took = p.now().Sub(began)
	if kind == EventSucceeded {
		e.Calls++
	}
	p.Emit(e)
}

// about is what is known of a message in an attempt.
func (p Poison) about(kind EventKind, d Delivery, msg *message.Message) Event {
	attempt := attemptOf(d)

	return Event{
		Kind: kind, Topic: message.SubscribeTopicFromCtx(msg.Context()), Queue: d.Queue(), Handler: message.HandlerNameFromCtx(msg.Context()),
		Message: msg, Attempt: attempt, Calls: attempt.Calls,
	}
}

// failure makes the events of a failure: that it is decided over, and what has become of that.
type failure struct {
	Poison
	event   Event // the fields that all of them have
	decided time.Time
}

// decide tells of the verdict. began is zero if there was no attempt.
func (f failure) decide(v Verdict, began time.Time) {
	e := f.event
	e.Kind, e.Verdict = EventFailed, v
	if !began.IsZero() {
		e.Took = f.decided.Sub(began)
	}
	f.Emit(e)
}

// settle tells what has become of the verdict.
func (f failure) settle(kind EventKind, v Verdict, err error) {
	e := f.event
	e.Kind, e.Verdict = kind, v
	if err != nil {
		e.Err = err
	}
	e.Took = f.now().Sub(f.decided)
	f.Emit(e)
}

// carriedOut names the event for an action that was carried out.
func carriedOut(action Action) EventKind {
	switch action {
	case ActionRetry:
		return EventRetried
	case ActionPostpone:
		return EventPostponed
	case ActionDeadLetter:
		return EventDeadLettered
	case ActionDrop:
		return EventDropped
	case ActionRetryNow, ActionRequeue:
	}

	panic("unreachable: these are not carried out by a consumer")
}
