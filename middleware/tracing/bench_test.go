package tracing_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/amqpretry/watermill-retry/middleware/tracing"
)

// What a message costs that nobody samples, and one that is recorded.
func BenchmarkMiddleware(b *testing.B) {
	for name, test := range benchmarks() {
		b.Run(name, func(b *testing.B) {
			handler := newBenchmarked(b, test).Middleware(succeeds)
			msg := message.NewMessage("1", nil)
			msg.Metadata["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0" + test.flag
			b.ReportAllocs()
			for b.Loop() {
				_, _ = handler(msg)
			}
		})
	}
}

func BenchmarkPublisher(b *testing.B) {
	for name, test := range benchmarks() {
		b.Run(name, func(b *testing.B) {
			p := newBenchmarked(b, test).Publisher(nothing{})
			msg := message.NewMessage("1", nil)
			b.ReportAllocs()
			for b.Loop() {
				_ = p.Publish("orders", msg)
			}
		})
	}
}

// A message that is not sampled costs few allocations, and fewer than one that is.
func TestNotSampledIsCheap(t *testing.T) {
	allocations := func(name string) float64 {
		test := benchmarks()[name]
		handler := newBenchmarked(t, test).Middleware(succeeds)
		msg := message.NewMessage("1", nil)
		msg.Metadata["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0" + test.flag

		return testing.AllocsPerRun(100, func() { _, _ = handler(msg) })
	}
	assert.LessOrEqual(t, allocations("not sampled"), 12.0)
	assert.Less(t, allocations("not sampled"), allocations("recorded"))
}

type benchmark struct {
	provider trace.TracerProvider
	flag     string
}

func benchmarks() map[string]benchmark {
	return map[string]benchmark{
		"no tracer":   {noop.NewTracerProvider(), "1"},
		"not sampled": {sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())), "0"},
		"recorded":    {sdktrace.NewTracerProvider(), "1"},
	}
}

func newBenchmarked(b testing.TB, test benchmark) *tracing.Tracing {
	tr, err := tracing.New(tracing.Config{TracerProvider: test.provider, Propagator: propagation.TraceContext{}})
	require.NoError(b, err)

	return tr
}

type nothing struct{}

func (nothing) Publish(string, ...*message.Message) error { return nil }
func (nothing) Close() error                              { return errors.ErrUnsupported }
