// Tracing shows one trace for a message: its publish, each attempt, the waits, and its end. Look at
// the lines with traced, which are the part to copy.
package main

import (
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
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/middleware/tracing"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string, out io.Writer) error {
	topic := "tracing-" + watermill.NewShortUUID()
	spans := tracetest.NewSpanRecorder()       // a service would export them
	traced, err := tracing.New(tracing.Config{ // a service that has set otel's global ones needs neither
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
		Propagator:     propagation.TraceContext{},
	})
	if err != nil {
		return err
	}

	conf := amqp.NewDurableQueueConfig(uri)
	conf.Consume.Qos.PrefetchCount = 10
	retrier, err := amqpv2.New(conf, amqpretry.Options{
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
	own, err := retrier.NewPublisher()
	if err != nil {
		return err
	}
	publisher := traced.Publisher(own)

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
		if err := publisher.Publish(topic, message.NewMessageWithContext(ctx, id, nil)); err != nil {
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
	}, func(a, b []sdktrace.ReadOnlySpan) int { return a[0].StartTime().Compare(b[0].StartTime()) })

	for _, spans := range ordered {
		fmt.Fprintln(out, "one trace:")
		for i, span := range spans {
			fmt.Fprintf(out, "  %d %s\n", i+1, describe(span, spans))
		}
	}
}

// describe tells of a span by its attributes, and by the number of the call before.
func describe(span sdktrace.ReadOnlySpan, all []sdktrace.ReadOnlySpan) string {
	attributes := attribute.NewSet(span.Attributes()...)
	text := func(key attribute.Key) string {
		value, _ := attributes.Value(key)
		return value.Emit()
	}
	line := text("messaging.operation.name") + " " + text("messaging.message.id")
	if span.Parent().IsValid() {
		line = "  " + line
	}
	switch text("messaging.operation.name") {
	case "process":
		line += " by handler " + text("amqpretry.handler")
		if attributes.HasValue("amqpretry.attempt") { // a dead letter has none
			line += ", attempt " + text("amqpretry.attempt")
		}
	case "wait":
		line += " " + text("amqpretry.delay") + " s"
	case "dead-letter":
		line += " (" + text("amqpretry.reason") + ")"
	}
	for _, link := range span.Links() {
		to := attribute.NewSet(link.Attributes...)
		if what, _ := to.Value("amqpretry.link"); what.AsString() != "publish" { // but the call before
			line += fmt.Sprintf(", after %d", 1+slices.IndexFunc(all, func(s sdktrace.ReadOnlySpan) bool {
				return s.SpanContext().SpanID() == link.SpanContext.SpanID()
			}))
		}
	}
	if span.Status().Code == codes.Error {
		line += ": " + span.Status().Description
	}

	return line
}
