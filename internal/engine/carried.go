package engine

import (
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/contextkey"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// WithDelivery returns a context that carries the delivery of a message.
func WithDelivery(ctx context.Context, d Delivery) context.Context {
	return context.WithValue(ctx, contextkey.Delivery{}, carried{d})
}

// HasDelivery reports whether a context carries a delivery of this engine already.
func HasDelivery(ctx context.Context, e *Engine) bool {
	c, ok := ctx.Value(contextkey.Delivery{}).(carried)
	return ok && c.Engine() == e
}

// DeliveryOf is the delivery of a message; nil if it has none.
func DeliveryOf(msg *message.Message) Delivery {
	c, _ := msg.Context().Value(contextkey.Delivery{}).(carried)
	return c.Delivery
}

// IsOff reports whether the policy leaves the message alone: then a handler sees what it would see without us.
func IsOff(d Delivery) bool { return d.Policy().Mode == config.ModeOff }

// carried is a delivery as package retry shows it to handlers.
type carried struct{ Delivery }

func (c carried) Attempt() (retry.Attempt, bool) {
	if IsOff(c) {
		return retry.Attempt{}, false
	}

	return attemptOf(c.Delivery, c.now()), true
}

func (c carried) MarkHandled(mark string) {
	if IsOff(c) {
		return
	}
	s := *c.State()
	s.Handled = mark
	c.Advance(s)
}

func (c carried) HandledMark() string {
	if IsOff(c) {
		return ""
	}

	return c.State().Handled
}

// now is the time by which the engine decides: in a unit test, that of its clock.
func (c carried) now() time.Time { return c.Engine().Time() }

// isFinal reports whether a plain error is the end of the message.
func isFinal(d Delivery, now time.Time) bool {
	s := d.State()
	const shortestJitter = 1 - 1e-9
	action := Decide(*d.Policy(), Case{
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

// WithDeadLetter returns a context that carries what a dead letter tells of its failure.
func WithDeadLetter(ctx context.Context, l retry.DeadLetter) context.Context {
	return context.WithValue(ctx, contextkey.DeadLetter{}, l)
}

// LastTrace is the W3C traceparent of the last traced call of a message's handler, over all its lives; empty if there
// is none.
func LastTrace(d Delivery) string { return d.State().Trace }

// SetTrace notes the W3C traceparent of the present call. If the call fails, the copy of the message carries it. It
// does nothing under policy "off".
func SetTrace(d Delivery, traceparent string) {
	if IsOff(d) {
		return
	}
	s := *d.State()
	s.Trace = traceparent
	d.Advance(s)
}
