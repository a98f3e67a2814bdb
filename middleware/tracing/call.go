package tracing

import (
	"context"
	"errors"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/retry"
)

var errGoexit = errors.New("the handler called runtime.Goexit")

// Middleware makes a span of each call of a handler. It belongs inside of the retry middleware:
// outside, it sees neither errors nor single calls.
//
// The handler finds the span in the message's context. The messages that it returns belong to the
// span as well, unless their contexts have a span already. A panic ends the span and goes on.
func (t *Tracing) Middleware(h message.HandlerFunc) message.HandlerFunc {
	var last cached

	return func(msg *message.Message) (produced []*message.Message, err error) {
		d := engine.DeliveryOf(msg)
		destination := message.SubscribeTopicFromCtx(msg.Context())
		if d != nil {
			destination = d.Queue()
		}
		o := t.originOf(msg, d, false)
		ctx, span := last.of(destination, t.process).start(o.ctx, t.tracer, trace.WithLinks(o.links...))

		c := call{Tracing: t, msg: msg, delivery: d, before: msg.Context(), span: span}
		c.begin()
		msg.SetContext(ctx)
		returned := false
		defer func() {
			if returned {
				c.end(err)
				for _, m := range produced {
					adopt(ctx, m)
				}

				return
			}
			value := recover() // none in a Goexit; panic(nil) has one
			if value == nil {
				c.end(errGoexit)
				return
			}
			c.panicked(value)
			panic(value)
		}()
		produced, err = h(msg)
		returned = true

		return produced, err
	}
}

func (t *Tracing) process(destination string) *operation {
	return t.newOperation(operationProcess, destination, trace.SpanKindConsumer, semconv.MessagingOperationTypeProcess)
}

// call is one call of a handler.
type call struct {
	*Tracing
	msg      *message.Message
	delivery engine.Delivery // nil if no retrier has received the message
	before   context.Context // of the message
	span     trace.Span
}

func (c *call) begin() {
	if c.span.SpanContext().IsSampled() {
		c.note() // now, as also what comes after a success can fail
	}
	if c.span.IsRecording() {
		c.span.SetAttributes(c.attributes()...)
	}
}

// note lets the message carry the call's span, if it comes back.
func (c *call) note() {
	if sc := c.span.SpanContext(); c.delivery != nil && sc.IsValid() {
		engine.SetTrace(c.delivery, format(sc))
	}
}

// end ends the span, with more about an error. What a handler says of a message that was taken away
// is no failure, and a message that is postponed has not failed either.
func (c *call) end(err error, more ...attribute.KeyValue) {
	defer c.span.End()

	if c.span.IsRecording() {
		switch {
		case engine.Withdrawn(c.before):
			c.span.SetAttributes(attribute.Bool("amqpretry.withdrawn", true))
		case err != nil && !isPostponed(err):
			c.failed(c.span, c.delivery, err, more...)
		}
	}
	if err != nil && !c.span.SpanContext().IsSampled() {
		c.note()
	}
	c.msg.SetContext(c.before) // the next call is not part of this one
}

// panicked ends a call that panics. The stack is shown where the retrier shows such.
func (c *call) panicked(value any) {
	e := &retry.PanicError{Value: value, Stack: debug.Stack()}
	var more []attribute.KeyValue
	if c.delivery != nil && c.delivery.Engine().PanicStacks {
		more = append(more, semconv.ExceptionStacktrace(string(e.Stack)))
	}
	c.end(e, more...)
}

func (c *call) attributes() []attribute.KeyValue {
	ctx := c.before
	a := subject(c.msg, message.SubscribeTopicFromCtx(ctx), message.HandlerNameFromCtx(ctx))
	if attempt, ok := retry.AttemptFromContext(ctx); ok {
		a = append(a, attemptAttributes(attempt, attempt.Calls)...)
		a = append(a, attribute.Bool("amqpretry.last_attempt", attempt.Last))
	}
	if l, ok := retry.DeadLetterFromContext(ctx); ok {
		a = append(a, attribute.Int("amqpretry.calls", l.Calls))
		if l.Reason != "" {
			a = append(a, attribute.String("amqpretry.reason", string(l.Reason)))
		}
		a = appendReplays(a, l.Replays)
	}

	return a
}

// subject tells which message it is, and whose.
func subject(msg *message.Message, topic, handler string) []attribute.KeyValue {
	a := make([]attribute.KeyValue, 0, 10)
	if msg.UUID != "" {
		a = append(a, semconv.MessagingMessageID(msg.UUID))
	}
	if topic != "" {
		a = append(a, attribute.String("amqpretry.topic", topic))
	}
	if handler != "" {
		a = append(a, attribute.String("amqpretry.handler", handler))
	}

	return a
}

func attemptAttributes(attempt retry.Attempt, calls int) []attribute.KeyValue {
	a := []attribute.KeyValue{
		attribute.Int("amqpretry.attempt", attempt.Number), attribute.Int("amqpretry.calls", calls),
	}
	if attempt.Try > 1 {
		a = append(a, attribute.Int("amqpretry.try", attempt.Try))
	}

	return appendReplays(a, attempt.Replays)
}

func appendReplays(a []attribute.KeyValue, replays int) []attribute.KeyValue {
	if replays == 0 {
		return a
	}

	return append(a, attribute.Int("amqpretry.replays", replays))
}

// isPostponed tells a wish from a failure. The error is foreign code, which may panic.
func isPostponed(err error) bool {
	defer func() { _ = recover() }()

	return errors.Is(err, retry.ErrPostponed)
}

// adopt makes a message that a handler has returned part of its span.
func adopt(ctx context.Context, msg *message.Message) {
	if msg == nil || trace.SpanContextFromContext(msg.Context()).IsValid() {
		return
	}
	own := trace.ContextWithSpanContext(msg.Context(), trace.SpanContextFromContext(ctx)) // it has ended by then
	if b := baggage.FromContext(ctx); b.Len() > 0 && baggage.FromContext(own).Len() == 0 {
		own = baggage.ContextWithBaggage(own, b)
	}
	msg.SetContext(own)
}
