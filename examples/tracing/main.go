// Tracing shows one trace for a message: its publish, each attempt, and its end. Look at type tracing, which is the part
// to copy. The trace context travels in the metadata, and the retrier keeps it.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// tracing writes and reads the trace context by OpenTelemetry's propagator.
type tracing struct {
	tracer     trace.Tracer
	propagator propagation.TraceContext
}

// publish gives a message the context of the span that it is published in.
func (t tracing) publish(ctx context.Context, publisher message.Publisher, topic string, msg *message.Message) error {
	ctx, span := t.tracer.Start(ctx, "publish "+msg.UUID, trace.WithSpanKind(trace.SpanKindProducer))
	defer span.End()
	t.propagator.Inject(ctx, propagation.MapCarrier(msg.Metadata))

	return publisher.Publish(topic, msg)
}

// Middleware makes a span of every attempt. It belongs inside of the retry middleware.
func (t tracing) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx, span := t.tracer.Start(t.context(msg), message.HandlerNameFromCtx(msg.Context())+" "+msg.UUID,
			trace.WithSpanKind(trace.SpanKindConsumer))
		defer span.End()
		if attempt, ok := retry.AttemptFromContext(msg.Context()); ok {
			span.SetAttributes(attribute.Int("attempt", attempt.Number))
		}
		msg.SetContext(ctx) // so that what the handler does is part of it

		produced, err := h(msg)
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}

		return produced, err
	}
}

// OnEvent makes a span of each wait, and of the end in the dead-letter queue.
func (t tracing) OnEvent(e retry.Event) {
	name := ""
	switch e.Kind {
	case retry.EventRetried:
		name = "wait " + e.Verdict.Delay.String()
	case retry.EventDeadLettered:
		name = fmt.Sprintf("dead-lettered (%s)", e.Verdict.Reason)
	default:
		return
	}
	_, span := t.tracer.Start(t.context(e.Message), name, trace.WithTimestamp(e.At.Add(-e.Took))) // since the failure
	span.End(trace.WithTimestamp(e.At.Add(e.Verdict.Delay)))
}

func (t tracing) context(msg *message.Message) context.Context {
	return t.propagator.Extract(msg.Context(), propagation.MapCarrier(msg.Metadata))
}

func run(ctx context.Context, uri string, out io.Writer) error {
	topic := "tracing-" + watermill.NewShortUUID()
	spans := tracetest.NewSpanRecorder() // a service would export them
	traced := tracing{tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("shop")}

	conf := amqp.NewDurableQueueConfig(uri)
	conf.Consume.Qos.PrefetchCount = 10
	conf.Publish.ConfirmDelivery = true
	retrier, err := amqpretry.New(conf, amqpretry.Options{
		Logger: watermill.NopLogger{}, // this program prints what happens; a service logs it
		Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{100 * time.Millisecond,
			200 * time.Millisecond}}},
		OnEvent: traced.OnEvent,
	})
	if err != nil {
		return err
	}
	defer retrier.Close()
	defer tidy.Up(uri, retrier, topic) // no service deletes its queues
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	deadLetters, err := retrier.NewDeadLetterSubscriber()
	if err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(conf, watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer publisher.Close()

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddMiddleware(retrier.Middleware, traced.Middleware)
	router.AddPlugin(retrier.CheckRouter)

	var finished atomic.Int64 // one for each message: shipped, or filed
	finish := func() {
		if finished.Add(1) == 2 {
			go router.Close()
		}
	}
	router.AddConsumerHandler("ship", topic, subscriber, func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		if msg.UUID == "order-1" && attempt.Number == 2 {
			finish()
			return nil
		}

		return errors.New("the warehouse does not answer")
	})
	router.AddConsumerHandler("file", topic, deadLetters, func(*message.Message) error {
		finish()
		return nil
	})

	if err := subscriber.SubscribeInitialize(topic); err != nil { // so that the queue exists
		return err
	}
	for _, id := range []string{"order-1", "order-2"} {
		if err := traced.publish(ctx, publisher, topic, message.NewMessage(id, nil)); err != nil {
			return err
		}
	}
	if err := router.Run(ctx); err != nil {
		return err
	}
	show(out, spans.Ended())

	return nil
}

// show prints each trace with its spans in the order in which they began.
func show(out io.Writer, spans []sdktrace.ReadOnlySpan) {
	slices.SortStableFunc(spans, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	traces := map[trace.TraceID][]sdktrace.ReadOnlySpan{}
	for _, span := range spans {
		id := span.SpanContext().TraceID()
		traces[id] = append(traces[id], span)
	}
	ordered := slices.SortedFunc(func(yield func([]sdktrace.ReadOnlySpan) bool) {
		for _, spans := range traces {
			if !yield(spans) {
				return
			}
		}
	}, func(a, b []sdktrace.ReadOnlySpan) int { return cmp.Compare(a[0].Name(), b[0].Name()) })

	for _, spans := range ordered {
		fmt.Fprintln(out, "one trace:")
		for _, span := range spans {
			line := "  " + span.Name()
			if span.Parent().IsValid() {
				line = "  " + line
			}
			for _, a := range span.Attributes() {
				line += fmt.Sprintf(", %s %s", a.Key, a.Value.Emit())
			}
			if span.Status().Code == codes.Error {
				line += ": " + span.Status().Description
			}
			fmt.Fprintln(out, line)
		}
	}
}
