package engine

import (
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// WithDelivery returns a context that carries the delivery of a message.
func WithDelivery(ctx context.Context, d Delivery) context.Context {
	return retry.NewContext(ctx, carried{d})
}

// HasDelivery reports whether a context carries a delivery of this engine already.
func HasDelivery(ctx context.Context, e *Engine) bool {
	c, ok := retry.FromContext(ctx).(carried)
	return ok && c.Engine() == e
}

// DeliveryOf is the delivery of a message; nil if it has none.
func DeliveryOf(msg *message.Message) Delivery {
	c, _ := retry.FromContext(msg.Context()).(carried)
	return c.Delivery
}

// IsOff reports whether the policy leaves the message alone: then a handler sees what it would see
// without us.
func IsOff(d Delivery) bool { return d.Policy().Mode == config.ModeOff }

// carried is a delivery as package retry shows it to handlers.
type carried struct{ Delivery }

func (c carried) Attempt() (retry.Attempt, bool) {
	if IsOff(c) {
		return retry.Attempt{}, false
	}

	return attemptOf(c.Delivery, c.now()), true
}

// MarkHandled notes on the message whose context ctx is that its handler has succeeded, under a
// mark that is the caller's own. A copy of the message has it if a middleware outside makes a
// failure of the success after all: [HandledMark] tells it in the retry. It does nothing for
// messages that do not come from a retrier, and under policy "off".
func MarkHandled(ctx context.Context, mark string) {
	c, _ := retry.FromContext(ctx).(carried)
	if c.Delivery == nil || IsOff(c) {
		return
	}
	s := *c.State()
	s.Handled = mark
	c.Advance(s)
}

// HandledMark returns the mark of the last call of [MarkHandled] for the message whose context ctx
// is; empty if there was none.
func HandledMark(ctx context.Context) string {
	c, _ := retry.FromContext(ctx).(carried)
	if c.Delivery == nil || IsOff(c) {
		return ""
	}

	return c.State().Handled
}

// Withdrawn reports whether the message whose context ctx is was taken away from its handler: see
// [retry.Delivery].
func Withdrawn(ctx context.Context) bool {
	d := retry.FromContext(ctx)
	return d != nil && d.Withdrawn()
}

// now is the time by which the engine decides: in a unit test, that of its clock.
func (c carried) now() time.Time { return c.Engine().Time() }

// isFinal reports whether a plain error is the end of the message.
func isFinal(d Delivery, now time.Time) bool {
	s := d.State()
	const shortestJitter = 1 - 1e-9
	action := Decide(d.Policy(), Case{
		Class: retry.ClassError, Failures: s.Count, Tries: s.Tries, Now: now, Since: s.Since, Deadline: s.Deadline,
		Random: shortestJitter, Copy: d.NeedsCopy(),
	}).Action

	return action == retry.ActionDeadLetter || action == retry.ActionDrop
}

func attemptOf(d Delivery, now time.Time) retry.Attempt {
	s, policy := d.State(), d.Policy()
	retries := policy.MaxRetries()

	return retry.Attempt{
		Number:       s.Count + 1,
		Try:          s.Tries + 1,
		Failures:     s.Count,
		MaxRetries:   retries,
		Last:         isFinal(d, now),
		Calls:        s.Attempts,
		Replays:      s.Replays,
		Since:        s.Since,
		Deadline:     s.Deadline,
		FirstFailure: s.FirstFailure,
		LastError:    s.Error,
		History:      slices.Clone(s.History),
		Queue:        d.Queue(),
	}
}

// DeadLetterOf is what the headers of a dead letter say.
func DeadLetterOf(s wire.State) retry.DeadLetter {
	return retry.DeadLetter{
		Reason: s.Reason, Error: s.Error, ErrorType: s.ErrorType,
		Queue: s.Queue, Topic: s.Topic, Handler: s.Handler, Host: s.Host,
		Calls: s.Attempts, Replays: s.Replays, FirstFailure: s.FirstFailure, LastFailure: s.LastFailure,
		History: s.History,
		Since:   s.Since, Deadline: s.Deadline,
		Exchange: s.Arrival.Exchange, RoutingKey: s.Arrival.RoutingKey, Expiration: s.Arrival.Expiration,
		UserID: s.Arrival.UserID,
		Trace:  s.Trace, Removed: s.Removed,
	}
}

// LastTrace is the W3C traceparent of the last traced call of a message's handler, over all its
// lives; empty if there is none.
func LastTrace(d Delivery) string { return d.State().Trace }

// SetTrace notes the W3C traceparent of the present call. If the call fails, the copy of the
// message carries it. It does nothing under policy "off".
func SetTrace(d Delivery, traceparent string) {
	if IsOff(d) {
		return
	}
	s := *d.State()
	s.Trace = traceparent
	d.Advance(s)
}
