package tracing

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/amqpretry/watermill-retry/config"
)

// defaultSystem is what [Config.System] is when it is empty.
const defaultSystem = "rabbitmq"

// Config says where spans go and how messages carry them. The zero value uses otel's global
// providers.
type Config struct {
	// TracerProvider makes the spans. Defaults to otel's global one, also if that is set later.
	TracerProvider trace.TracerProvider

	// Propagator writes the context of a span into a message's metadata and reads it. Defaults to
	// otel's global one, also if that is set later. As long as nobody sets that, it does nothing,
	// and the span of a publish is a trace of its own.
	Propagator propagation.TextMapPropagator

	// System is messaging.system. Defaults to "rabbitmq". For messages of another Pub/Sub, make
	// another Tracing.
	System string

	// LinkOnly makes a message's creation context a link of the consumer's spans and not their
	// parent. Each call is then a trace of its own, or part of the span in the message's context,
	// if there is one.
	LinkOnly bool

	// NoCreateSpans makes one span of a call of Publish with several messages, which all of them
	// carry, each with its own baggage. Its parent is the span in the context of the first message,
	// and it links to those of the others. By default each message has a span "create" of its own,
	// so that its trace has no other message in it.
	NoCreateSpans bool

	// Exchange and RoutingKey tell where messages of a topic are published, as amqp.Config has them
	// in Exchange.GenerateName and Publish.GenerateRoutingKey. Both are optional: publishers of
	// amqpretry know it themselves. For others, the destination of a producer's span is the topic,
	// and it has no messaging.rabbitmq.destination.routing_key.
	Exchange, RoutingKey func(topic string) string

	// Attributes are added to all spans, such as semconv.ServerAddress("rabbit.example.com").
	// Optional.
	Attributes []attribute.KeyValue

	// ErrorText makes the text of an error that is written on spans: the place to redact. Defaults
	// to the retrier's Options.ErrorText for messages of a retrier, and else to the error's own
	// text. A panic in it costs the text.
	ErrorText func(error) string
}

// Validate reports all problems in one error, as joined [*config.FieldError]s.
func (c Config) Validate() error {
	var errs []error
	for i, a := range c.Attributes {
		if !a.Valid() {
			errs = append(errs, &config.FieldError{
				Path: fmt.Sprintf("Config.Attributes[%d]", i), Problem: "not an attribute",
				Wanted: "a key and a value of a type that OpenTelemetry has", Found: strconv.Quote(string(a.Key)),
			})
		}
	}

	return errors.Join(errs...)
}

func (c *Config) setDefaults() {
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.Propagator == nil {
		c.Propagator = otel.GetTextMapPropagator()
	}
	c.System = cmp.Or(c.System, defaultSystem)
}
