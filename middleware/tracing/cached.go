package tracing

import (
	"context"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"
)

// cached keeps the operation of the destination that was asked for last: mostly there is only one.
type cached struct {
	last atomic.Pointer[operation]
}

func (c *cached) of(destination string, prepare func(destination string) *operation) *operation {
	if o := c.last.Load(); o != nil && o.of == destination {
		return o
	}
	o := prepare(destination)
	o.of = destination
	c.last.Store(o)

	return o
}

// start begins a span of the operation, with some options of its own.
func (o *operation) start(ctx context.Context, tracer trace.Tracer, options ...trace.SpanStartOption) (context.Context,
	trace.Span) {
	return tracer.Start(ctx, o.name, append(options, o.options...)...)
}
