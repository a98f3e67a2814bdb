package tracing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"
)

// Publisher returns a publisher that makes a span of each call of Publish, and lets the messages
// carry its context. Close and String are those of p. A p with a method Destination, as amqpretry's
// publishers have, says where a topic's messages go, unless Config.Exchange or Config.RoutingKey
// does.
//
// The parent of the span is the one in the first message's context: see message.Message.SetContext.
// A message that carries a context already keeps it, and the span links to it. The messages
// themselves stay as they are: p gets copies.
func (t *Tracing) Publisher(p message.Publisher) message.Publisher {
	return &publisher{tracing: t, inner: p, target: t.targetOf(p)}
}

type publisher struct {
	tracing *Tracing
	inner   message.Publisher
	target  func(topic string) (exchange, routingKey string) // nil if nobody knows

	// sends of a publish whose context the messages carry, and of others
	sends, sendsOnly, creates cached
}

var errPublisherPanicked = errors.New("the publisher panicked or called runtime.Goexit")

func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return p.inner.Publish(topic)
	}
	t := p.tracing
	b := batch{messages: messages}
	var own []int // those without a creation context
	for i, m := range messages {
		if creation := t.creationOf(m); creation.IsValid() {
			b.link(creation)
		} else {
			own = append(own, i)
		}
	}

	kind, prepare := &p.sendsOnly, p.sendOnly
	switch {
	case len(own) > 0 && (len(messages) == 1 || t.config.NoCreateSpans):
		kind, prepare = &p.sends, p.send
		if len(messages) > 1 {
			b.linkContexts(own)
		}
	case len(own) > 0:
		for _, i := range own {
			b.link(p.create(topic, &b, i))
		}
		own = nil
	}
	ctx, span := kind.of(topic, prepare).start(messages[0].Context(), t.tracer, trace.WithLinks(b.links...))
	if span.IsRecording() {
		if len(messages) > 1 {
			span.SetAttributes(semconv.MessagingBatchMessageCount(len(messages)))
		} else if id := messages[0].UUID; id != "" {
			span.SetAttributes(semconv.MessagingMessageID(id))
		}
	}
	for _, i := range own {
		if i > 0 { // it has baggage of its own
			ctx = trace.ContextWithSpan(messages[i].Context(), span)
		}
		b.stamp(ctx, t, i)
	}

	return p.publish(topic, span, b)
}

// publish hands the messages to the publisher inside, and ends the span.
func (p *publisher) publish(topic string, span trace.Span, b batch) error {
	defer span.End()
	returned := false
	defer func() {
		if !returned {
			p.tracing.failed(span, nil, errPublisherPanicked)
		}
	}()
	for i, m := range b.copies {
		if m != nil { // what the publisher does is part of the span
			m.SetContext(trace.ContextWithSpan(b.originals[i].Context(), span))
		}
	}
	err := p.inner.Publish(topic, b.messages...)
	returned = true
	if err != nil && span.IsRecording() {
		p.tracing.failed(span, nil, err)
	}

	return err
}

// create makes the creation context of one message of several.
func (p *publisher) create(topic string, b *batch, i int) trace.SpanContext {
	m := b.messages[i]
	ctx, span := p.creates.of(topic, p.newCreate).start(m.Context(), p.tracing.tracer)
	defer span.End()
	if span.IsRecording() && m.UUID != "" {
		span.SetAttributes(semconv.MessagingMessageID(m.UUID))
	}
	b.stamp(ctx, p.tracing, i)

	return span.SpanContext()
}

// batch is the messages of one call of Publish.
type batch struct {
	messages  []*message.Message // as they are published
	originals []*message.Message // as they were given; nil as long as they are the same
	copies    []*message.Message // at the places of those that were copied
	links     []trace.Link
}

func (b *batch) link(sc trace.SpanContext) {
	if sc.IsValid() {
		b.links = append(b.links, trace.Link{SpanContext: sc})
	}
}

// linkContexts links to the spans that messages belong to, as the send has one parent: that of the
// first message.
func (b *batch) linkContexts(messages []int) {
	known := map[trace.SpanID]bool{trace.SpanContextFromContext(b.messages[0].Context()).SpanID(): true}
	for _, i := range messages {
		if sc := trace.SpanContextFromContext(b.messages[i].Context()); !known[sc.SpanID()] {
			known[sc.SpanID()] = true
			b.link(sc)
		}
	}
}

// stamp replaces a message by a copy that carries the context.
func (b *batch) stamp(ctx context.Context, t *Tracing, i int) {
	if !trace.SpanContextFromContext(ctx).IsValid() && baggage.FromContext(ctx).Len() == 0 {
		return // nobody traces
	}
	if b.originals == nil {
		b.originals, b.messages = b.messages, slices.Clone(b.messages)
		b.copies = make([]*message.Message, len(b.messages))
	}
	m := b.originals[i]
	stamped := message.NewMessageWithContext(m.Context(), m.UUID, m.Payload)
	maps.Copy(stamped.Metadata, m.Metadata)
	delete(stamped.Metadata, "tracestate") // of no trace, or the message would have a creation context
	t.config.Propagator.Inject(ctx, propagation.MapCarrier(stamped.Metadata))
	b.messages[i], b.copies[i] = stamped, stamped
}

func (p *publisher) send(topic string) *operation {
	return p.produce(operationSend, topic, trace.SpanKindProducer, semconv.MessagingOperationTypeSend)
}

func (p *publisher) sendOnly(topic string) *operation {
	return p.produce(operationSend, topic, trace.SpanKindClient, semconv.MessagingOperationTypeSend)
}

func (p *publisher) newCreate(topic string) *operation {
	return p.produce(operationCreate, topic, trace.SpanKindProducer, semconv.MessagingOperationTypeCreate)
}

func (p *publisher) produce(name, topic string, kind trace.SpanKind, more ...attribute.KeyValue) *operation {
	destination := topic
	if p.target != nil {
		exchange, key := p.target(topic)
		destination = destinationName(exchange, key)
		if key != "" {
			more = append(more, semconv.MessagingRabbitMQDestinationRoutingKey(key))
		}
	}

	return p.tracing.newOperation(name, destination, kind, more...)
}

// targetOf is where messages of a topic go: the config says so, or else the publisher.
func (t *Tracing) targetOf(p message.Publisher) func(topic string) (exchange, routingKey string) {
	name := func(of func(string) string, topic string) string {
		if of == nil {
			return ""
		}

		return of(topic)
	}
	if t.config.Exchange != nil || t.config.RoutingKey != nil {
		return func(topic string) (exchange, routingKey string) {
			return name(t.config.Exchange, topic), name(t.config.RoutingKey, topic)
		}
	}
	if p, ok := p.(interface {
		Destination(topic string) (exchange, routingKey string)
	}); ok {
		return p.Destination
	}

	return nil
}

// destinationName names a destination as the conventions do for RabbitMQ.
func destinationName(exchange, key string) string {
	switch {
	case exchange != "" && key != "":
		return exchange + ":" + key
	case exchange+key != "":
		return exchange + key
	default:
		return "amq.default"
	}
}

// Close closes the publisher inside.
func (p *publisher) Close() error { return p.inner.Close() }

// String names the publisher inside for Watermill, which writes that on messages and metrics.
func (p *publisher) String() string {
	if s, ok := p.inner.(fmt.Stringer); ok {
		return s.String()
	}

	return strings.TrimLeft(fmt.Sprintf("%T", p.inner), "*")
}
