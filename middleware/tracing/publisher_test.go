package tracing_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/amqpretry/watermill-retry/middleware/tracing"
)

const (
	custom     = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	customSpan = "b7ad6b7169203331"
)

func withCustom(id string) *message.Message {
	msg := message.NewMessage(id, nil)
	msg.Metadata["traceparent"] = custom

	return msg
}

func traceparent(sc trace.SpanContext) string {
	return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-01"
}

// ofTenant is a context with baggage.
func ofTenant(ctx context.Context, t *testing.T, tenant string) context.Context {
	t.Helper()
	member, err := baggage.NewMember("tenant", tenant)
	require.NoError(t, err)
	bag, err := baggage.New(member)
	require.NoError(t, err)

	return baggage.ContextWithBaggage(ctx, bag)
}

// One message: the span of its publish is its creation context.
func TestPublishOne(t *testing.T) {
	tr, out := newTraced(t, tracing.Config{}), &captured{}
	ctx, parent := tr.provider.Tracer("").Start(t.Context(), "request")
	msg := message.NewMessageWithContext(ctx, "1", []byte("body"))
	msg.Metadata["key"] = "value"
	require.NoError(t, tr.Publisher(out).Publish("orders", msg))
	parent.End()

	assert.Equal(t, "1 a request\n2 a send orders, in 1", tr.story())
	span := tr.spans()[1]
	assert.Equal(t, trace.SpanKindProducer, span.SpanKind())
	assert.Equal(t, map[string]any{
		"messaging.system": "rabbitmq", "messaging.operation.name": "send", "messaging.operation.type": "send",
		"messaging.destination.name": "orders", "messaging.message.id": "1",
	}, attributes(span))

	assert.Equal(t, message.Metadata{"key": "value"}, msg.Metadata, "the message stays as it is")
	assert.Equal(t, ctx, msg.Context())
	got := out.messages[0]
	assert.Equal(t, message.Metadata{"key": "value", "traceparent": traceparent(span.SpanContext())}, got.Metadata)
	assert.Equal(t, "1", got.UUID)
	assert.Equal(t, "body", string(got.Payload))
	assert.Equal(t, span.SpanContext(), trace.SpanContextFromContext(got.Context()), "for instrumentation inside")
	assert.Nil(t, msg.Context().Value(struct{}{}))
}

// The same message published twice is two messages.
func TestPublishTwice(t *testing.T) {
	tr, out := newTraced(t, tracing.Config{}), &captured{}
	p, msg := tr.Publisher(out), message.NewMessage("1", nil)
	require.NoError(t, p.Publish("orders", msg))
	require.NoError(t, p.Publish("audit", msg))
	assert.Equal(t, "1 a send orders\n2 b send audit", tr.story())
}

// A context that the message has already is kept, and the span links to it.
func TestPublishCustomContext(t *testing.T) {
	tr, out := newTraced(t, tracing.Config{}), &captured{}
	msg := withCustom("1")
	require.NoError(t, tr.Publisher(out).Publish("orders", msg))
	assert.Equal(t, "1 a send orders, links elsewhere", tr.story())
	span := tr.spans()[0]
	assert.Equal(t, trace.SpanKindClient, span.SpanKind(), "its context is not the creation context")
	assert.Equal(t, customSpan, span.Links()[0].SpanContext.SpanID().String())
	assert.Equal(t, custom, out.messages[0].Metadata["traceparent"])
}

// Each message of several has a creation context of its own.
func TestPublishSeveral(t *testing.T) {
	tr, out := newTraced(t, tracing.Config{}), &captured{}
	given := []*message.Message{message.NewMessage("1", nil), withCustom("2"), message.NewMessage("3", nil)}
	require.NoError(t, tr.Publisher(out).Publish("orders", given...))

	assert.Equal(t, lines(
		"1 a create orders", "2 b create orders", "3 c send orders, links elsewhere, links 1, links 2",
	), tr.story())
	spans := tr.spans()
	assert.Equal(t, []trace.SpanKind{trace.SpanKindProducer, trace.SpanKindProducer, trace.SpanKindClient},
		kinds(spans))
	assert.Equal(t, map[string]any{
		"messaging.system": "rabbitmq", "messaging.operation.name": "create", "messaging.operation.type": "create",
		"messaging.destination.name": "orders", "messaging.message.id": "3",
	}, attributes(spans[1]))
	assert.Equal(t, map[string]any{
		"messaging.system": "rabbitmq", "messaging.operation.name": "send", "messaging.operation.type": "send",
		"messaging.destination.name": "orders", "messaging.batch.message_count": int64(3),
	}, attributes(spans[2]))

	var ids, contexts []string
	for _, m := range out.messages {
		ids, contexts = append(ids, m.UUID), append(contexts, m.Metadata["traceparent"])
	}
	assert.Equal(t, []string{"1", "2", "3"}, ids, "their order")
	assert.Equal(t, []string{traceparent(spans[0].SpanContext()), custom, traceparent(spans[1].SpanContext())},
		contexts)
	assert.Empty(t, given[0].Metadata)
	assert.Equal(t, spans[2].SpanContext(), trace.SpanContextFromContext(out.messages[2].Context()))
}

func TestNoCreateSpans(t *testing.T) {
	tr, out := newTraced(t, tracing.Config{NoCreateSpans: true}), &captured{}
	require.NoError(t, tr.Publisher(out).Publish("orders", message.NewMessage("1", nil), withCustom("2")))
	assert.Equal(t, "1 a send orders, links elsewhere", tr.story())
	span := tr.spans()[0]
	assert.Equal(t, trace.SpanKindProducer, span.SpanKind())
	assert.Equal(t, traceparent(span.SpanContext()), out.messages[0].Metadata["traceparent"])
	assert.Equal(t, custom, out.messages[1].Metadata["traceparent"])
}

// Messages of several traces and tenants, in one call.
func TestNoCreateSpans_OfSeveralTraces(t *testing.T) {
	tr, out := newTraced(t, tracing.Config{NoCreateSpans: true}), &captured{}
	given := make([]*message.Message, 4)
	for i, tenant := range []string{"alice", "bob", "bob", ""} {
		given[i] = message.NewMessage(tenant, nil)
		if tenant == "" {
			continue
		}
		ctx, span := tr.provider.Tracer("").Start(t.Context(), tenant)
		given[i].SetContext(ofTenant(ctx, t, tenant))
		span.End()
	}
	require.NoError(t, tr.Publisher(out).Publish("orders", given...))

	assert.Equal(t, "1 a alice\n2 b bob\n3 c bob\n4 a send orders, in 1, links 2, links 3", tr.story())
	var tenants []string
	for _, m := range out.messages {
		tenants = append(tenants, m.Metadata["baggage"])
		assert.Equal(t, traceparent(tr.only("send orders").SpanContext()), m.Metadata["traceparent"])
	}
	assert.Equal(t, []string{"tenant=alice", "tenant=bob", "tenant=bob", ""}, tenants)
}

// A tracestate belongs to its traceparent: without one it says nothing of the new trace.
func TestPublishStaleTracestate(t *testing.T) {
	tr, out := newTraced(t, tracing.Config{}), &captured{}
	msg := message.NewMessage("1", nil)
	msg.Metadata.Set("tracestate", "vendor=old")
	require.NoError(t, tr.Publisher(out).Publish("orders", msg))
	assert.NotContains(t, out.messages[0].Metadata, "tracestate")
	assert.Equal(t, "vendor=old", msg.Metadata["tracestate"], "the given one stays")
}

// Baggage goes on also where nobody makes spans.
func TestPublishBaggageOnly(t *testing.T) {
	tr, out := newTraced(t, tracing.Config{TracerProvider: noop.NewTracerProvider()}), &captured{}
	msg := message.NewMessageWithContext(ofTenant(t.Context(), t, "alice"), "1", nil)
	require.NoError(t, tr.Publisher(out).Publish("orders", msg))
	assert.Equal(t, message.Metadata{"baggage": "tenant=alice"}, out.messages[0].Metadata)
}

// An error that knows its type tells it.
func TestErrorType(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"wrapped":   {fmt.Errorf("wrapped: %w", typedError("nacked")), "nacked"},
		"no answer": {typedError(""), "tracing_test.typedError"},
		"panics":    {typedError("panics"), "tracing_test.typedError"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTraced(t, tracing.Config{})
			require.Error(t, tr.Publisher(&captured{err: test.err}).Publish("orders", message.NewMessage("1", nil)))
			assert.Equal(t, test.want, attributes(tr.only("send orders"))["error.type"])
		})
	}
}

type typedError string

func (e typedError) Error() string { return "typed" }

func (e typedError) ErrorType() string {
	if e == "panics" {
		panic("no")
	}

	return string(e)
}

func TestPublishFails(t *testing.T) {
	secret := errors.New("secret")
	tr := newTraced(t, tracing.Config{ErrorText: func(error) string { return "redacted" }})
	require.ErrorIs(t, tr.Publisher(&captured{err: secret}).Publish("orders", message.NewMessage("1", nil)), secret)
	span := tr.only("send orders")
	assert.Equal(t, codes.Error, span.Status().Code)
	assert.Equal(t, "redacted", span.Status().Description)
	assert.Equal(t, "*errors.errorString", attributes(span)["error.type"])

	tr = newTraced(t, tracing.Config{})
	assert.Panics(t, func() {
		_ = tr.Publisher(&captured{panics: true}).Publish("orders", message.NewMessage("1", nil))
	})
	assert.Equal(t, "1 a send orders: the publisher panicked or called runtime.Goexit", tr.story())
}

func TestPublishNothing(t *testing.T) {
	tr := newTraced(t, tracing.Config{})
	require.NoError(t, tr.Publisher(&captured{}).Publish("orders"))
	assert.Empty(t, tr.spans())
}

// Where messages go, in the words of the conventions for RabbitMQ.
func TestDestination(t *testing.T) {
	name := func(s string) func(string) string { return func(topic string) string { return s + topic } }
	none := func(string) string { return "" }
	for want, test := range map[string]struct {
		config tracing.Config
		key    any
	}{
		"orders":            {tracing.Config{}, nil},
		"x.orders:k.orders": {tracing.Config{Exchange: name("x."), RoutingKey: name("k.")}, "k.orders"},
		"x.orders":          {tracing.Config{Exchange: name("x."), RoutingKey: none}, nil},
		"k.orders":          {tracing.Config{Exchange: none, RoutingKey: name("k.")}, "k.orders"},
		"amq.default":       {tracing.Config{Exchange: none}, nil},
	} {
		t.Run(want, func(t *testing.T) {
			tr := newTraced(t, test.config)
			require.NoError(t, tr.Publisher(&captured{}).Publish("orders", message.NewMessage("1", nil)))
			span := tr.only("send " + want)
			assert.Equal(t, want, attributes(span)["messaging.destination.name"])
			assert.Equal(t, test.key, attributes(span)["messaging.rabbitmq.destination.routing_key"])
		})
	}
}

// aware is a publisher that knows where messages of a topic go.
type aware struct {
	captured

	prefix string
}

func (a *aware) Destination(topic string) (exchange, routingKey string) {
	return a.prefix + topic, "k." + topic
}

// Such a publisher is asked, for all kinds of spans, unless the config says something.
func TestDestination_OfThePublisher(t *testing.T) {
	name := func(topic string) string { return "config." + topic }
	for want, c := range map[string]tracing.Config{
		"x.orders:k.orders": {}, "config.orders": {Exchange: name}, "config.orders:config.orders": {Exchange: name,
			RoutingKey: name},
	} {
		tr := newTraced(t, c)
		p := tr.Publisher(&aware{prefix: "x."})
		sent := tr.published("0")
		require.NoError(t, p.Publish("orders", message.NewMessage("1", nil), message.NewMessage("2", nil)))
		require.NoError(t, p.Publish("orders", sent))
		names := map[string]int{}
		for _, span := range tr.spans()[1:] {
			names[span.Name()]++
			_, key, _ := strings.Cut(want, ":")
			assert.Equal(t, key, cmp.Or(attributes(span)["messaging.rabbitmq.destination.routing_key"], any("")))
		}
		assert.Equal(t, map[string]int{"create " + want: 2, "send " + want: 2}, names)
	}
}

// Two topics in turn do not get each other's names.
func TestTopicsInTurn(t *testing.T) {
	tr := newTraced(t, tracing.Config{System: "kafka", Attributes: []attribute.KeyValue{attribute.Int("n", 1)}})
	p := tr.Publisher(&captured{})
	for _, topic := range []string{"a", "b", "a"} {
		require.NoError(t, p.Publish(topic, message.NewMessage("1", nil)))
	}
	assert.Equal(t, "1 a send a\n2 b send b\n3 c send a", tr.story())
	for _, span := range tr.spans() {
		assert.Equal(t, "kafka", attributes(span)["messaging.system"])
		assert.Equal(t, int64(1), attributes(span)["n"])
	}
}

// What a handler publishes belongs to its call; also what it passes on.
func TestOutputs(t *testing.T) {
	tr := newTraced(t, tracing.Config{})
	ctx, request := tr.provider.Tracer("").Start(ofTenant(t.Context(), t, "1"), "request")
	in := &captured{}
	require.NoError(t, tr.Publisher(in).Publish("orders", message.NewMessageWithContext(ctx, "1", nil)))
	request.End()
	ctx, other := tr.provider.Tracer("").Start(t.Context(), "other")
	other.End()

	msg := in.messages[0]
	msg.SetContext(t.Context())
	handler := tr.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		assert.Equal(t, "tenant=1", baggage.FromContext(msg.Context()).String())
		msg.Metadata = message.Metadata{} // as a new message

		return []*message.Message{
			message.NewMessage("2", nil), message.NewMessageWithContext(ctx, "3", nil), msg, nil,
		}, nil
	})
	produced, err := handler(msg)
	require.NoError(t, err)
	out := &captured{}
	for i, m := range produced[:3] {
		require.NoError(t, tr.Publisher(out).Publish([]string{"new", "own", "passed"}[i], m))
	}
	assert.Equal(t, lines("1 a request", "2 a send orders, in 1", "3 b other", "4 a process, in 2, publish 2",
		"5 a send new, in 4", "6 b send own, in 3", "7 a send passed, in 4"), tr.story())
	assert.Equal(t, "tenant=1", out.messages[0].Metadata["baggage"])
}

type named struct{ captured }

func (*named) String() string { return "the name" }

func TestPublisherPassesOn(t *testing.T) {
	tr := newTraced(t, tracing.Config{})
	failure := errors.New("x")
	inner := &captured{err: failure}
	p := tr.Publisher(inner)
	require.ErrorIs(t, p.Close(), failure)
	assert.True(t, inner.closed)
	assert.Equal(t, "tracing_test.captured", p.(interface{ String() string }).String(), "as Watermill would name it")
	assert.Equal(t, "the name", tr.Publisher(&named{}).(interface{ String() string }).String())
}

// Where nobody traces, messages go through as they are.
func TestNoTracer(t *testing.T) {
	tr, out := newTraced(t, tracing.Config{TracerProvider: noop.NewTracerProvider()}), &captured{}
	msg := message.NewMessage("1", nil)
	require.NoError(t, tr.Publisher(out).Publish("orders", msg))
	assert.Same(t, msg, out.messages[0])
	_, err := tr.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errDown })(msg)
	require.ErrorIs(t, err, errDown)
}
