package tracing

import (
	"cmp"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/retry"
)

// OnEvent makes spans of what no handler sees: a message waits, is dead-lettered, is dropped, or
// its copy is given up. It is for amqpretry.Options.OnEvent, and for the OnEvent of a processor.
func (t *Tracing) OnEvent(e retry.Event) {
	if e.Message == nil {
		return
	}
	switch e.Kind {
	case retry.EventRetried, retry.EventPostponed:
		wait := e.Verdict.Delay
		if e.Verdict.Wait > 0 {
			wait = e.Verdict.Wait
		}
		t.after(&e, t.waits.of(e.Queue, t.wait), wait)
	case retry.EventDeadLettered:
		t.after(&e, t.deadLetters.of(e.Queue, t.settle(operationDeadLetter)), 0)
	case retry.EventDropped:
		t.after(&e, t.drops.of(e.Queue, t.settle(operationDrop)), 0)
	case retry.EventAbandoned:
		t.after(&e, t.abandons.of(e.Queue, t.settle(operationAbandon)), 0)
	}
}

func (t *Tracing) wait(destination string) *operation {
	return t.newOperation(operationWait, destination, trace.SpanKindInternal)
}

func (t *Tracing) settle(name string) func(string) *operation {
	return func(destination string) *operation {
		return t.newOperation(name, destination, trace.SpanKindClient, semconv.MessagingOperationTypeSettle)
	}
}

// after makes a span of what was done with a message since that was decided, and of its wait.
func (t *Tracing) after(e *retry.Event, o *operation, wait time.Duration) {
	d := engine.DeliveryOf(e.Message)
	from := t.originOf(e.Message, d, true)
	_, span := o.start(from.ctx, t.tracer, trace.WithLinks(from.links...), trace.WithTimestamp(e.At.Add(-e.Took)))
	defer span.End(trace.WithTimestamp(e.At.Add(wait)))
	if !span.IsRecording() {
		return
	}

	a := subject(e.Message, e.Topic, e.Handler)
	if e.Class != retry.ClassUndecodable { // which no handler was called with
		a = append(a, attemptAttributes(e.Attempt, e.Calls)...)
	}
	a = append(a, attribute.String("amqpretry.class", string(e.Class)))
	if e.Verdict.Reason != "" {
		a = append(a, attribute.String("amqpretry.reason", string(e.Verdict.Reason)))
	}
	if e.Kind == retry.EventRetried || e.Kind == retry.EventPostponed {
		a = append(a, attribute.Float64("amqpretry.delay", wait.Seconds()))
	}
	span.SetAttributes(a...)
	if e.Err != nil && (e.Kind == retry.EventAbandoned || isUnseen(e.Class)) {
		t.failedUnseen(span, d, e.Err)
	}
}

// failedUnseen notes the error of a message that no handler has seen.
func (t *Tracing) failedUnseen(span trace.Span, d engine.Delivery, err error) {
	if d != nil || t.config.ErrorText != nil {
		t.failed(span, d, err)
		return
	}
	// A stock subscriber's: the retrier's ErrorText cannot be reached, so the text may be a secret.
	_, errorType := t.texts.Describe(err)
	span.SetStatus(codes.Error, "")
	span.SetAttributes(semconv.ErrorTypeKey.String(cmp.Or(errorType, other)))
}

// isUnseen tells of which failures no span of a call shows the error.
func isUnseen(c retry.Class) bool {
	switch c {
	case retry.ClassUndecodable, retry.ClassCrashed, retry.ClassExpired, retry.ClassUnpublishable, retry.ClassRejected:
		return true
	default:
		return false
	}
}
