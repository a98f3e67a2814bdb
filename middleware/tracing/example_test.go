package tracing_test

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/middleware/tracing"
)

func Example() {
	traced, err := tracing.New(tracing.Config{}) // otel's global providers
	if err != nil {
		fmt.Println(err)
		return
	}
	conf := amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/")
	retrier, err := amqpv2.New(conf, amqpretry.Options{OnEvent: traced.OnEvent})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = retrier.Close() }()

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		fmt.Println(err)
		return
	}
	router.AddMiddleware(retrier.Middleware, traced.Middleware)
	// Output:
}

// The spans of a message that succeeds in its second attempt.
func ExampleTracing_Middleware() {
	spans := tracetest.NewSpanRecorder()
	traced, err := tracing.New(tracing.Config{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
		Propagator:     propagation.TraceContext{},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	failed := false
	retrytest.Run(retrytest.Service{
		Topic: "orders", OnEvent: traced.OnEvent,
		Middlewares: []message.HandlerMiddleware{traced.Middleware},
		ConsumerHandler: func(*message.Message) error {
			if !failed {
				failed = true
				return errors.New("the warehouse does not answer")
			}

			return nil
		},
	}, message.NewMessage("order-1", nil))

	for _, span := range spans.Ended() {
		fmt.Printf("%s %q\n", span.Name(), span.Status().Description)
	}
	// Output:
	// process orders "the warehouse does not answer"
	// wait orders ""
	// process orders ""
}

func ExampleTracing_Publisher() {
	spans := tracetest.NewSpanRecorder()
	traced, err := tracing.New(tracing.Config{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
		Propagator:     propagation.TraceContext{},
		Attributes:     []attribute.KeyValue{attribute.String("server.address", "rabbit.example.com")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	publisher := traced.Publisher(gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}))
	defer func() { _ = publisher.Close() }()
	if err := publisher.Publish("orders", message.NewMessage("order-1", nil)); err != nil {
		fmt.Println(err)
		return
	}

	for _, span := range spans.Ended() {
		fmt.Println(span.Name(), span.SpanKind())
	}
	// Output: send orders producer
}
