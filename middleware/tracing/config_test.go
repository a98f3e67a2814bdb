package tracing_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/middleware/tracing"
)

func TestValidate(t *testing.T) {
	_, err := tracing.New(tracing.Config{Attributes: []attribute.KeyValue{
		attribute.String("ok", ""), {}, {Key: "none"},
	}})
	var field *config.FieldError
	require.ErrorAs(t, err, &field)
	assert.Equal(t, "Config.Attributes[1]", field.Path)
	require.ErrorContains(t, err, "invalid config of the tracing:")
	require.ErrorContains(t, err, `Config.Attributes[2]`)
	require.NoError(t, tracing.Config{}.Validate())
}

// The zero value follows the global providers, also those that are set later.
func TestGlobals(t *testing.T) {
	tr, err := tracing.New(tracing.Config{})
	require.NoError(t, err)
	out := &captured{}
	p := tr.Publisher(out)
	require.NoError(t, p.Publish("orders", message.NewMessage("1", nil)))
	assert.Empty(t, out.messages[0].Metadata)

	r := tracetest.NewSpanRecorder()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r)))
	otel.SetTextMapPropagator(propagation.TraceContext{})
	require.NoError(t, p.Publish("orders", message.NewMessage("2", nil)))
	require.Len(t, r.Ended(), 1)
	assert.Equal(t, traceparent(r.Ended()[0].SpanContext()), out.messages[1].Metadata["traceparent"])
}
