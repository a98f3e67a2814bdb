package tracing

import (
	"context"
	"encoding/hex"

	"go.opentelemetry.io/otel/trace"

	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// lastCall is the span of the last call of a message's handler, as far as its headers tell.
func lastCall(ctx context.Context, d engine.Delivery) trace.SpanContext {
	text := ""
	if d != nil {
		text = engine.LastTrace(d)
	}
	if text == "" {
		if l, ok := retry.DeadLetterFromContext(ctx); ok {
			text = l.Trace
		}
	}

	return parse(text)
}

// format spells a span context as a W3C traceparent.
func format(sc trace.SpanContext) string {
	id, span := sc.TraceID(), sc.SpanID()
	text := make([]byte, 0, 55)
	text = append(text, "00-"...)
	text = hex.AppendEncode(text, id[:])
	text = append(text, '-')
	text = hex.AppendEncode(text, span[:])
	text = append(text, '-')
	text = hex.AppendEncode(text, []byte{byte(sc.TraceFlags())})

	return string(text)
}

// parse reads a W3C traceparent. What is none is an invalid context.
func parse(text string) trace.SpanContext {
	if wire.Traceparent(text) == "" {
		return trace.SpanContext{}
	}
	var (
		c     = trace.SpanContextConfig{Remote: true}
		flags [1]byte
	)
	_, _ = hex.Decode(c.TraceID[:], []byte(text[3:35])) // it was checked
	_, _ = hex.Decode(c.SpanID[:], []byte(text[36:52]))
	_, _ = hex.Decode(flags[:], []byte(text[53:]))
	c.TraceFlags = trace.TraceFlags(flags[0])

	return trace.NewSpanContext(c)
}
