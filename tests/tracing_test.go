package tests

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/delay"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/middleware/tracing"
	"github.com/amqpretry/watermill-retry/retry"
)

func newTracing(t *testing.T) (*tracing.Tracing, *tracetest.SpanRecorder) {
	t.Helper()
	r := tracetest.NewSpanRecorder()
	traced, err := tracing.New(tracing.Config{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r)),
		Propagator:     propagation.TraceContext{},
	})
	require.NoError(t, err)

	return traced, r
}

// tracedService is a service whose handler fails as long as failing says, behind a traced
// publisher.
func tracedService(t *testing.T, options amqpretry.Options, failing func() bool) (*service, message.Publisher,
	*tracetest.SpanRecorder) {
	t.Helper()
	traced, recorder := newTracing(t)
	options.OnEvent = traced.OnEvent
	svc := newService(t, setup{
		URI: brokertest.URI(t), Tiers: true, Options: options, Configure: func(c *amqp.Config) {
			c.Marshaler = picky{}
		},
		Route: func(s *service) {
			s.Router.AddMiddleware(traced.Middleware)
			s.Router.AddConsumerHandler("ship", s.Queue, s.Sub, func(msg *message.Message) error {
				for key := range msg.Metadata {
					assert.False(t, header.IsOwn(key), key)
				}
				if failing() {
					return errors.New("a secret")
				}

				return nil
			})
		},
	})
	stock, err := amqp.NewPublisher(svc.Retrier.Config(), watermill.NopLogger{})
	require.NoError(t, err)
	publisher := traced.Publisher(stock)
	t.Cleanup(func() { _ = publisher.Close() })

	return svc, publisher, recorder
}

// One trace has the publish, all attempts, the waits and the end. It goes on when the dead letter
// is replayed.
func TestTracing(t *testing.T) {
	t.Parallel()
	var replayed atomic.Bool
	svc, publisher, recorder := tracedService(t, amqpretry.Options{
		Policies: retries(ms(50, 100)...), ErrorText: func(error) string { return "redacted" },
	}, func() bool { return !replayed.Load() })
	svc.run()
	require.NoError(t, publisher.Publish(svc.Queue, message.NewMessage("1", nil)))
	await.Until(t, func() bool { return len(svc.Letters()) == 1 }, "it is dead-lettered")

	client, err := dlq.Open(t.Context(), dlq.Config{URI: brokertest.URI(t), NoDeliveryLimitPolicy: true})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	letters := client.Queue(svc.Queue)
	letter, err := letters.Get(t.Context(), "1")
	require.NoError(t, err)
	replayed.Store(true)
	report, err := letters.Run(t.Context(), dlq.Plan{Kind: dlq.Replay})
	require.NoError(t, err)
	require.Equal(t, 1, report.Done)
	await.Until(t, func() bool { return len(svc.Events(retry.EventSucceeded)) == 1 }, "it succeeds")
	svc.close()

	spans := inOrder(recorder.Ended())
	assert.Equal(t, []string{
		"1 send Q",
		"2 process Q in 1: redacted",
		"3 wait Q in 1 after 2",
		"4 process Q in 1 after 2: redacted",
		"5 wait Q in 1 after 4",
		"6 process Q in 1 after 4: redacted",
		"7 dead-letter Q in 1 after 6",
		"8 process Q in 1 after 6",
	}, toldOf(spans, svc.Queue))
	assert.Equal(t, 1, traces(spans))
	last := spans[5].SpanContext()
	assert.Equal(t, "00-"+last.TraceID().String()+"-"+last.SpanID().String()+"-01", letter.Trace)
}

// Spans of our publishers say where RabbitMQ gets the messages, with nothing set.
func TestTracing_Destination(t *testing.T) {
	t.Parallel()
	through := func(c *amqp.Config) {
		c.Exchange.GenerateName = func(topic string) string { return "x." + topic }
		c.Exchange.Type = "topic"
		c.Publish.GenerateRoutingKey = func(topic string) string { return "k." + topic }
	}
	for want, configure := range map[string]func(*amqp.Config){"Q": nil, "x.Q:k.Q": through} {
		topic := uniqueName("traced")
		svc := newService(t, setup{URI: brokertest.URI(t), Queue: topic, Configure: configure})
		t.Cleanup(func() { svc.Broker.Remove("x." + topic) })
		plain, err := svc.Retrier.NewPublisher()
		require.NoError(t, err)
		delays, err := svc.Retrier.NewDelayPublisher(plain, delay.Options{})
		require.NoError(t, err)
		for _, p := range []message.Publisher{plain, delays} {
			traced, recorder := newTracing(t)
			_ = traced.Publisher(p).Publish(topic, message.NewMessage("1", nil)) // to an exchange without a queue
			require.Len(t, recorder.Ended(), 1)
			span := recorder.Ended()[0]
			assert.Equal(t, "send "+want, strings.ReplaceAll(span.Name(), topic, "Q"))
			key := strings.ReplaceAll(want[strings.Index(want, ":")+1:], "Q", topic)
			assert.Contains(t, span.Attributes(), attribute.String("messaging.rabbitmq.destination.routing_key", key))
		}
	}
}

// The handler of dead letters is part of the trace; and so is the end of a message that no handler
// has seen.
func TestTracing_OfDeadLetters(t *testing.T) {
	t.Parallel()
	svc, publisher, recorder := tracedService(t, amqpretry.Options{
		Policies:  config.Policies{Default: config.Policy{Mode: config.ModeDeadLetter}},
		ErrorText: func(error) string { return "redacted" },
	}, func() bool { return true })
	a := &archive{}
	svc.file(a)
	svc.run()
	publish := func(body string, count int) []string {
		before := len(recorder.Ended())
		require.NoError(t, publisher.Publish(svc.Queue, message.NewMessage("1", []byte(body))))
		await.Until(t, func() bool { return len(recorder.Ended()) == before+count }, "all have ended")
		spans := inOrder(recorder.Ended()[before:])
		assert.Equal(t, 1, traces(spans))

		return toldOf(spans, svc.Queue)
	}

	assert.Equal(t, []string{
		"1 send Q", "2 process Q in 1: redacted", "3 dead-letter Q in 1 after 2", "4 process Q.dlq in 1 after 2",
	}, publish("", 4))
	assert.Equal(t, []string{
		"1 send Q", "2 dead-letter Q in 1: redacted", "3 process Q.dlq in 1",
	}, publish("reject", 3))
}

// inOrder sorts spans by when they began.
func inOrder(spans []sdktrace.ReadOnlySpan) []sdktrace.ReadOnlySpan {
	spans = slices.Clone(spans)
	slices.SortStableFunc(spans, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })

	return spans
}

// toldOf tells of spans: the number and the name of each, the numbers of its parent and of the call
// that it links to, and its error.
func toldOf(spans []sdktrace.ReadOnlySpan, queue string) (told []string) {
	number := func(sc trace.SpanContext) int {
		return 1 + slices.IndexFunc(spans, func(s sdktrace.ReadOnlySpan) bool {
			return s.SpanContext().SpanID() == sc.SpanID()
		})
	}
	for i, s := range spans {
		line := fmt.Sprintf("%d %s", i+1, strings.ReplaceAll(s.Name(), queue, "Q"))
		if s.Parent().IsValid() {
			line += fmt.Sprintf(" in %d", number(s.Parent()))
		}
		for _, l := range s.Links() {
			if !slices.Contains(l.Attributes, attribute.String("amqpretry.link", "publish")) {
				line += fmt.Sprintf(" after %d", number(l.SpanContext))
			}
		}
		if s.Status().Code == codes.Error {
			line += ": " + s.Status().Description
		}
		told = append(told, line)
	}

	return told
}

func traces(spans []sdktrace.ReadOnlySpan) int {
	ids := map[trace.TraceID]bool{}
	for _, s := range spans {
		ids[s.SpanContext().TraceID()] = true
	}

	return len(ids)
}
