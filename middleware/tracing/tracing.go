package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/amqpretry/watermill-retry/internal/engine"
)

// scope names the instrumentation in exported spans.
const scope = "github.com/amqpretry/watermill-retry/middleware/tracing"

// Tracing makes spans of messages. It is safe for concurrent use.
type Tracing struct {
	config Config
	tracer trace.Tracer
	// texts describes errors of messages that no retrier has received.
	texts *engine.Engine

	waits, deadLetters, drops, abandons cached
}

// New checks the config and makes a Tracing. An error reports all problems.
func New(c Config) (*Tracing, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("invalid config of the tracing:\n%w", err)
	}
	c.setDefaults()

	return &Tracing{
		config: c,
		tracer: c.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)),
		texts:  &engine.Engine{ErrorText: c.ErrorText},
	}, nil
}

// The operations that spans are named after.
const (
	operationCreate     = "create"
	operationSend       = "send"
	operationProcess    = "process"
	operationWait       = "wait"
	operationDeadLetter = "dead-letter"
	operationDrop       = "drop"
	operationAbandon    = "abandon"
)

// operation is what all spans of one operation on one destination begin with.
type operation struct {
	of      string // what it was asked for by: see cached
	name    string // of the spans
	options []trace.SpanStartOption
}

// newOperation prepares an operation, with attributes of its own.
func (t *Tracing) newOperation(name, destination string, kind trace.SpanKind, more ...attribute.KeyValue) *operation {
	o := &operation{name: name}
	attributes := []attribute.KeyValue{
		semconv.MessagingSystemKey.String(t.config.System), semconv.MessagingOperationName(name),
	}
	if destination != "" {
		o.name += " " + destination
		attributes = append(attributes, semconv.MessagingDestinationName(destination))
	}
	attributes = slices.Concat(attributes, more, t.config.Attributes)
	o.options = []trace.SpanStartOption{trace.WithSpanKind(kind), trace.WithAttributes(attributes...)}

	return o
}

// origin is where a consumer's span belongs.
type origin struct {
	ctx   context.Context // parent of the span
	links []trace.Link
}

// The values of amqpretry.link.
var (
	linkPreviousCall = []attribute.KeyValue{attribute.String("amqpretry.link", "previous-call")}
	linkCall         = []attribute.KeyValue{attribute.String("amqpretry.link", "call")}
	linkPublish      = []attribute.KeyValue{attribute.String("amqpretry.link", "publish")}
	linkContext      = []attribute.KeyValue{attribute.String("amqpretry.link", "context")}
)

// originOf finds the parent and the links of a consumer's span: of a call, or of what comes after
// one. d may be nil.
func (t *Tracing) originOf(msg *message.Message, d engine.Delivery, after bool) origin {
	ctx := msg.Context()
	ambient := trace.SpanContextFromContext(ctx)
	extracted := t.extracted(ctx, ambient, msg, d, after)
	creation, last := trace.SpanContextFromContext(extracted), lastCall(ctx, d)

	links := make([]trace.Link, 0, 3)
	parent := creation
	switch {
	case t.config.LinkOnly && after && last.IsValid():
		parent = last
	case t.config.LinkOnly:
		parent = ambient
	case !parent.IsValid() && last.IsValid():
		parent = last
	case !parent.IsValid():
		parent = ambient
	}
	if ambient.IsValid() && !ambient.Equal(parent) && ambient.SpanID() != last.SpanID() {
		links = append(links, trace.Link{SpanContext: ambient, Attributes: linkContext})
	}
	if creation.IsValid() {
		links = append(links, trace.Link{SpanContext: creation, Attributes: linkPublish})
	}
	if last.IsValid() {
		what := linkPreviousCall
		if after {
			what = linkCall
		}
		links = append(links, trace.Link{SpanContext: last, Attributes: what})
	}

	switch {
	case parent.Equal(creation):
		ctx = extracted
	case parent.Equal(ambient): // a span that is being recorded stays that
		ctx = trace.ContextWithSpan(extracted, trace.SpanFromContext(ctx))
	default:
		ctx = trace.ContextWithRemoteSpanContext(extracted, parent)
	}

	return origin{ctx, links}
}

// extracted is the context with the message's creation context, as it was when the message arrived:
// its handler may have changed the metadata.
func (t *Tracing) extracted(ctx context.Context, ambient trace.SpanContext, msg *message.Message, d engine.Delivery,
	after bool) context.Context {
	if d != nil && after {
		if creation, ok := d.Origin().(trace.SpanContext); ok {
			return trace.ContextWithRemoteSpanContext(ctx, creation)
		}
	}
	ctx = t.extract(ctx, ambient, msg.Metadata)
	if d != nil && !after {
		d.Remember(trace.SpanContextFromContext(ctx))
	}

	return ctx
}

// extract reads what the metadata carry. The result has no span if they carry none.
func (t *Tracing) extract(ctx context.Context, ambient trace.SpanContext, metadata message.Metadata) context.Context {
	if ambient.IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	}
	if len(metadata) == 0 {
		return ctx
	}

	return t.config.Propagator.Extract(ctx, propagation.MapCarrier(metadata))
}

// creationOf is the creation context that a message carries.
func (t *Tracing) creationOf(msg *message.Message) trace.SpanContext {
	if len(msg.Metadata) == 0 {
		return trace.SpanContext{}
	}

	return trace.SpanContextFromContext(t.config.Propagator.Extract(context.Background(),
		propagation.MapCarrier(msg.Metadata)))
}

func (t *Tracing) describe(d engine.Delivery, err error) (text, goType string) {
	if d == nil || t.config.ErrorText != nil {
		return t.texts.Describe(err)
	}

	return d.Engine().Describe(err)
}

// other is error.type where an error panicked when it was asked.
var other = semconv.ErrorTypeOther.Value.AsString()

// failed notes an error on a span, with more about it.
func (t *Tracing) failed(span trace.Span, d engine.Delivery, err error, more ...attribute.KeyValue) {
	text, goType := t.describe(d, err)
	span.SetStatus(codes.Error, text)
	span.SetAttributes(semconv.ErrorTypeKey.String(cmp.Or(ownType(err), goType, other)))
	// Not RecordError, which would take the error's own text.
	span.AddEvent(semconv.ExceptionEventName, trace.WithAttributes(append(more,
		semconv.ExceptionType(cmp.Or(goType, other)), semconv.ExceptionMessage(text))...))
}

// ownType is what an error itself says that its type is, as those of package publish do. The error
// is foreign code, which may panic.
func ownType(err error) (name string) {
	defer func() {
		if recover() != nil {
			name = ""
		}
	}()
	var typed interface{ ErrorType() string }
	if errors.As(err, &typed) {
		return typed.ErrorType()
	}

	return ""
}
