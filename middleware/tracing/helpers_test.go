package tracing_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/middleware/tracing"
)

// traced is a Tracing with what it has recorded.
type traced struct {
	*tracing.Tracing
	t        *testing.T
	recorder *tracetest.SpanRecorder
	provider *sdktrace.TracerProvider
}

func newTraced(t *testing.T, c tracing.Config, options ...sdktrace.TracerProviderOption) traced {
	t.Helper()
	r := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(append(options, sdktrace.WithSpanProcessor(r))...)
	if c.TracerProvider == nil {
		c.TracerProvider = provider
	}
	if c.Propagator == nil {
		c.Propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	}
	tr, err := tracing.New(c)
	require.NoError(t, err)

	return traced{tr, t, r, provider}
}

// published is a message as the traced publisher publishes it.
func (tr traced) published(id string) *message.Message {
	tr.t.Helper()
	out := &captured{}
	require.NoError(tr.t, tr.Publisher(out).Publish("orders", message.NewMessage(id, nil)))

	return out.messages[0]
}

// run plays the life of a message.
func (tr traced) run(s retrytest.Service, msg *message.Message) retrytest.Result {
	tr.t.Helper()
	s.Topic, s.OnEvent = cmp.Or(s.Topic, "orders"), tr.OnEvent
	s.Middlewares = append(s.Middlewares, tr.Middleware)
	result := retrytest.Run(s, msg)
	require.NoError(tr.t, result.Err)

	return result
}

// spans are those that have ended, in the order in which they began.
func (tr traced) spans() []sdktrace.ReadOnlySpan {
	spans := tr.recorder.Ended()
	require.Len(tr.t, tr.recorder.Started(), len(spans), "every span ends")
	started := map[trace.SpanID]int{}
	for i, s := range tr.recorder.Started() {
		started[s.SpanContext().SpanID()] = i
	}
	slices.SortFunc(spans, func(a, b sdktrace.ReadOnlySpan) int {
		return started[a.SpanContext().SpanID()] - started[b.SpanContext().SpanID()]
	})

	return spans
}

// only is the span of a name, of which there is one.
func (tr traced) only(name string) sdktrace.ReadOnlySpan {
	tr.t.Helper()
	var found []sdktrace.ReadOnlySpan
	for _, s := range tr.spans() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	require.Len(tr.t, found, 1, name)

	return found[0]
}

// story tells of all spans: each a number, its trace, its name, and the numbers of its parent and
// its links.
//
//	1 a send orders
//	2 a process orders, in 1, links 1: the error
func (tr traced) story() string {
	tr.t.Helper()
	spans := tr.spans()
	number := func(sc trace.SpanContext) string {
		for i, s := range spans {
			if s.SpanContext().SpanID() == sc.SpanID() && s.SpanContext().TraceID() == sc.TraceID() {
				return fmt.Sprint(i + 1)
			}
		}

		return "elsewhere"
	}
	traces := map[trace.TraceID]string{}
	var lines []string
	for i, s := range spans {
		id := s.SpanContext().TraceID()
		if traces[id] == "" {
			traces[id] = string(rune('a' + len(traces)))
		}
		line := fmt.Sprintf("%d %s %s", i+1, traces[id], s.Name())
		if s.Parent().IsValid() {
			line += ", in " + number(s.Parent())
		}
		for _, l := range s.Links() {
			line += ", " + linkName(l) + " " + number(l.SpanContext)
		}
		if s.Status().Code == codes.Error {
			line += ": " + s.Status().Description
		}
		lines = append(lines, line)
	}

	return strings.Join(lines, "\n")
}

func linkName(l sdktrace.Link) string {
	for _, a := range l.Attributes {
		if a.Key == "amqpretry.link" {
			return a.Value.AsString()
		}
	}

	return "links"
}

// attributes are those of a span, and of its exception.
func attributes(s sdktrace.ReadOnlySpan) map[string]any {
	all := map[string]any{}
	add := func(attributes []attribute.KeyValue) {
		for _, a := range attributes {
			all[string(a.Key)] = a.Value.AsInterface()
		}
	}
	add(s.Attributes())
	for _, e := range s.Events() {
		add(e.Attributes)
	}

	return all
}

// captured is a publisher that keeps what it is given.
type captured struct {
	messages []*message.Message
	err      error
	forgets  bool
	panics   bool
	closed   bool
}

func (c *captured) Publish(_ string, messages ...*message.Message) error {
	if c.panics {
		panic("no")
	}
	if !c.forgets {
		c.messages = append(c.messages, messages...)
	}

	return c.err
}

func (c *captured) Close() error {
	c.closed = true
	return c.err
}
