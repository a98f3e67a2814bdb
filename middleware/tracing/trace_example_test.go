package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/middleware/tracing"
	"github.com/amqpretry/watermill-retry/retry"
)

// The trace of a message: its publish, each attempt, the waits, and its end. The lines with traced
// are the part to copy.
func Example_trace() {
	spans := tracetest.NewSpanRecorder()       // a service would export them
	traced, err := tracing.New(tracing.Config{ // a service that has set otel's global ones needs neither
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
		Propagator:     propagation.TraceContext{},
	})
	if err != nil {
		panic(err)
	}

	uri, orders := os.Getenv("AMQP_URI"), "orders-"+watermill.NewShortUUID()
	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig(uri), amqpretry.Options{
		Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{100 * time.Millisecond,
			200 * time.Millisecond}}},
		OnEvent: traced.OnEvent, Logger: watermill.NopLogger{},
	})
	if err != nil {
		panic(err)
	}
	defer func() { _ = retrier.Close() }()
	defer demo.Tidy(uri, retrier, orders)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		panic(err)
	}
	deadLetters, err := retrier.NewDeadLetterSubscriber()
	if err != nil {
		panic(err)
	}
	publisher, err := retrier.NewPublisher()
	if err != nil {
		panic(err)
	}

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	router.AddMiddleware(retrier.Middleware, traced.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	var finished atomic.Int64 // one for each message: shipped, or filed
	finish := func() {
		if finished.Add(1) == 2 {
			go func() { _ = router.Close() }()
		}
	}
	router.AddConsumerHandler("ship", orders, subscriber, func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		if msg.UUID == "order-1" && attempt.Number == 2 {
			finish()
			return nil
		}

		return errors.New("the warehouse does not answer")
	})
	router.AddConsumerHandler("file", orders, deadLetters, func(*message.Message) error {
		finish()
		return nil
	})

	if err := demo.Publish(traced.Publisher(publisher), subscriber, orders, "order-1", "order-2"); err != nil {
		panic(err)
	}
	if err := router.Run(context.Background()); err != nil {
		panic(err)
	}
	show(spans.Ended())
	// Output:
	// one trace:
	//   1 send order-1
	//   2   process order-1 by handler ship, attempt 1: the warehouse does not answer
	//   3   wait order-1 0.1 s, after 2
	//   4   process order-1 by handler ship, attempt 2, after 2
	// one trace:
	//   1 send order-2
	//   2   process order-2 by handler ship, attempt 1: the warehouse does not answer
	//   3   wait order-2 0.1 s, after 2
	//   4   process order-2 by handler ship, attempt 2, after 2: the warehouse does not answer
	//   5   wait order-2 0.2 s, after 4
	//   6   process order-2 by handler ship, attempt 3, after 4: the warehouse does not answer
	//   7   dead-letter order-2 (exhausted), after 6
	//   8   process order-2 by handler file, after 6
}

// show prints each trace with its spans in the order in which they began.
func show(spans []sdktrace.ReadOnlySpan) {
	slices.SortStableFunc(spans, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	traces, order := map[trace.TraceID][]sdktrace.ReadOnlySpan{}, []trace.TraceID{}
	for _, span := range spans {
		id := span.SpanContext().TraceID()
		if traces[id] == nil {
			order = append(order, id)
		}
		traces[id] = append(traces[id], span)
	}
	for _, id := range order {
		fmt.Println("one trace:")
		for i, span := range traces[id] {
			fmt.Printf("  %d %s\n", i+1, describe(span, traces[id]))
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
