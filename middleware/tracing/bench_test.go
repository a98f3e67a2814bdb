package tracing_test

import (
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
			b.ReportAllocs()
			for once := handled(b, test); b.Loop(); {
				once()
			}
		})
	}
}

func BenchmarkPublisher(b *testing.B) {
	for name, test := range benchmarks() {
		b.Run(name, func(b *testing.B) {
			p := newBenchmarked(b, test).Publisher(&captured{forgets: true})
			msg := message.NewMessage("1", nil)
			b.ReportAllocs()
			for b.Loop() {
				_ = p.Publish("orders", msg)
			}
		})
	}
}

// handled is a function that handles a message once.
func handled(t testing.TB, test benchmark) func() {
	t.Helper()
	handler := newBenchmarked(t, test).Middleware(succeeds)
	msg := message.NewMessage("1", nil)
	msg.Metadata["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0" + test.flag

	return func() { _, _ = handler(msg) }
}

// A message that is not sampled costs few allocations, and fewer than one that is.
func TestNotSampledIsCheap(t *testing.T) {
	allocations := func(name string) float64 {
		return testing.AllocsPerRun(100, handled(t, benchmarks()[name]))
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
