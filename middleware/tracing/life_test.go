package tracing_test

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/middleware/tracing"
	"github.com/amqpretry/watermill-retry/retry"
)

var (
	twoRetries = config.Policy{Delays: []time.Duration{time.Second, 5 * time.Second}}
	errDown    = errors.New("the warehouse does not answer")
)

func succeeds(*message.Message) ([]*message.Message, error) { return nil, nil }

func fails(*message.Message) error { return errDown }

func lines(s ...string) string { return strings.Join(s, "\n") }

// One trace shows the whole life; calls link to the calls before, also over a replay.
func TestWholeLife(t *testing.T) {
	tr := newTraced(t, tracing.Config{})
	service := retrytest.Service{Policy: twoRetries, ConsumerHandler: fails}
	result := tr.run(service, tr.published("1"))
	result.AssertDeadLettered(t, retry.ReasonExhausted)
	_, err := tr.Middleware(succeeds)(result.DeadLetter.Message)
	require.NoError(t, err)

	assert.Equal(t, lines(
		"1 a send orders",
		"2 a process orders, in 1, publish 1: the warehouse does not answer",
		"3 a wait orders, in 1, publish 1, call 2",
		"4 a process orders, in 1, publish 1, previous-call 2: the warehouse does not answer",
		"5 a wait orders, in 1, publish 1, call 4",
		"6 a process orders, in 1, publish 1, previous-call 4: the warehouse does not answer",
		"7 a dead-letter orders, in 1, publish 1, call 6",
		"8 a process, in 1, publish 1, previous-call 6",
	), tr.story())

	spans := tr.spans()
	common := map[string]any{"messaging.system": "rabbitmq", "messaging.destination.name": "orders",
		"messaging.message.id": "1"}
	call := func(attempt, calls int64) map[string]any {
		return map[string]any{"messaging.operation.name": "process", "messaging.operation.type": "process",
			"amqpretry.attempt": attempt, "amqpretry.calls": calls, "amqpretry.last_attempt": attempt == 3,
			"error.type": "*errors.errorString", "exception.type": "*errors.errorString",
			"exception.message": errDown.Error()}
	}
	wait := func(attempt int64, delay float64) map[string]any {
		return map[string]any{"messaging.operation.name": "wait", "amqpretry.attempt": attempt,
			"amqpretry.calls": attempt, "amqpretry.class": "error", "amqpretry.delay": delay}
	}
	for i, want := range []map[string]any{
		{"messaging.operation.name": "send", "messaging.operation.type": "send"},
		call(1, 0), wait(1, 1), call(2, 1), wait(2, 5), call(3, 2),
		{"messaging.operation.name": "dead-letter", "messaging.operation.type": "settle",
			"amqpretry.attempt": int64(3), "amqpretry.calls": int64(3), "amqpretry.class": "error",
			"amqpretry.reason": "exhausted"},
	} {
		maps.Copy(want, common)
		if i > 0 {
			want["amqpretry.topic"], want["amqpretry.handler"] = "orders", "handler"
		}
		assert.Equal(t, want, attributes(spans[i]), spans[i].Name())
	}
	assert.Equal(t, map[string]any{"messaging.system": "rabbitmq", "messaging.message.id": "1",
		"messaging.operation.name": "process", "messaging.operation.type": "process", "amqpretry.calls": int64(3),
		"amqpretry.reason": "exhausted"}, attributes(spans[7]), "a dead letter")

	assert.Equal(t, []trace.SpanKind{trace.SpanKindProducer, trace.SpanKindConsumer, trace.SpanKindInternal,
		trace.SpanKindConsumer, trace.SpanKindInternal, trace.SpanKindConsumer, trace.SpanKindClient,
		trace.SpanKindConsumer}, kinds(spans))
	assert.Equal(t, time.Second, spans[2].EndTime().Sub(spans[2].StartTime()), "a wait is as long as the delay")
	assert.Equal(t, 5*time.Second, spans[4].EndTime().Sub(spans[4].StartTime()))
	assert.Equal(t, "https://opentelemetry.io/schemas/1.39.0", spans[0].InstrumentationScope().SchemaURL)
	assert.Equal(t, "github.com/amqpretry/watermill-retry/middleware/tracing", spans[0].InstrumentationScope().Name)
}

func kinds(spans []sdktrace.ReadOnlySpan) []trace.SpanKind {
	var kinds []trace.SpanKind
	for _, s := range spans {
		kinds = append(kinds, s.SpanKind())
	}

	return kinds
}

// A message of a publisher that is not traced: its calls are one trace all the same.
func TestWithoutCreationContext(t *testing.T) {
	tr := newTraced(t, tracing.Config{})
	tr.run(retrytest.Service{Policy: twoRetries, ConsumerHandler: fails}, message.NewMessage("1", nil))
	assert.Equal(t, lines(
		"1 a process orders: the warehouse does not answer",
		"2 a wait orders, in 1, call 1",
		"3 a process orders, in 1, previous-call 1: the warehouse does not answer",
		"4 a wait orders, in 3, call 3",
		"5 a process orders, in 3, previous-call 3: the warehouse does not answer",
		"6 a dead-letter orders, in 5, call 5",
	), tr.story())
}

func TestLinkOnly(t *testing.T) {
	tr := newTraced(t, tracing.Config{LinkOnly: true})
	tr.run(retrytest.Service{Policy: config.Policy{Delays: []time.Duration{time.Second}}, ConsumerHandler: fails},
		tr.published("1"))
	assert.Equal(t, lines(
		"1 a send orders",
		"2 b process orders, publish 1: the warehouse does not answer",
		"3 b wait orders, in 2, publish 1, call 2",
		"4 c process orders, publish 1, previous-call 2: the warehouse does not answer",
		"5 c dead-letter orders, in 4, publish 1, call 4",
	), tr.story())
}

// The span of a program that passes its context to Subscribe, or of a Pub/Sub inside of one
// process.
func TestAmbientSpan(t *testing.T) {
	for name, test := range map[string]struct {
		config tracing.Config
		bare   bool
		want   []string
	}{
		"a link beside the parent": {tracing.Config{}, false,
			[]string{"1 a send orders", "2 b ambient", "3 a process, in 1, context 2, publish 1"}},
		"the parent with LinkOnly": {tracing.Config{LinkOnly: true}, false,
			[]string{"1 a send orders", "2 b ambient", "3 b process, in 2, publish 1"}},
		"the parent without another": {tracing.Config{}, true,
			[]string{"1 a send orders", "2 b ambient", "3 b process, in 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTraced(t, test.config)
			msg := tr.published("1")
			if test.bare {
				msg.Metadata = nil
			}
			ctx, span := tr.provider.Tracer("").Start(t.Context(), "ambient")
			msg.SetContext(ctx)
			_, err := tr.Middleware(succeeds)(msg)
			require.NoError(t, err)
			assert.Equal(t, ctx, msg.Context(), "it is as it was")
			span.End()
			assert.Equal(t, lines(test.want...), tr.story())
			call := tr.only("process")
			assert.Equal(t, call.Parent().SpanID() != span.SpanContext().SpanID(), call.Parent().IsRemote())
		})
	}
}

// What becomes of a message by other ways than a failed attempt.
func TestOtherLives(t *testing.T) {
	once := config.Policy{Delays: []time.Duration{time.Second}}
	for name, test := range map[string]struct {
		service retrytest.Service
		want    []string
	}{
		"fails inside of Watermill's Retry, whose calls are not part of each other": {
			retrytest.Service{Policy: config.Policy{Mode: config.ModeDeadLetter}, ConsumerHandler: fails,
				Middlewares: []message.HandlerMiddleware{wmmiddleware.Retry{MaxRetries: 1}.Middleware}},
			[]string{"1 a send orders", "2 a process orders, in 1, publish 1: the warehouse does not answer",
				"3 a process orders, in 1, publish 1, previous-call 2: the warehouse does not answer",
				"4 a dead-letter orders, in 1, publish 1, call 3"}},
		"succeeds": {retrytest.Service{ConsumerHandler: func(*message.Message) error { return nil }},
			[]string{"1 a send orders", "2 a process orders, in 1, publish 1"}},
		"is postponed, which is no error": {
			retrytest.Service{Policy: once, ConsumerHandler: func(msg *message.Message) error {
				if attempt, _ := retry.AttemptFromContext(msg.Context()); attempt.Calls == 0 {
					return retry.Postpone(time.Second)
				}

				return nil
			}},
			[]string{"1 a send orders", "2 a process orders, in 1, publish 1",
				"3 a wait orders, in 1, publish 1, call 2",
				"4 a process orders, in 1, publish 1, previous-call 2"}},
		"is tried again at once": {
			retrytest.Service{Policy: config.Policy{Mode: config.ModeDeadLetter, Immediate: 1}, ConsumerHandler: fails},
			[]string{"1 a send orders", "2 a process orders, in 1, publish 1: the warehouse does not answer",
				"3 a process orders, in 1, publish 1, previous-call 2: the warehouse does not answer",
				"4 a dead-letter orders, in 1, publish 1, call 3"}},
		"is dropped": {
			retrytest.Service{ConsumerHandler: func(*message.Message) error { return retry.Drop(errDown) }},
			[]string{"1 a send orders", "2 a process orders, in 1, publish 1: the warehouse does not answer",
				"3 a drop orders, in 1, publish 1, call 2"}},
		"cannot be decoded": {
			retrytest.Service{ConsumerHandler: fails, Unmarshal: func(*message.Message) error { return errDown }},
			[]string{"1 a send orders", "2 a dead-letter orders, in 1, publish 1: the warehouse does not answer"}},
		"crashes": {
			retrytest.Service{Policy: once, ConsumerHandler: fails, Faults: map[int]retrytest.Fault{
				retrytest.EveryCall: retrytest.Crash}}, nil},
		"has outputs that cannot be published": {
			retrytest.Service{Policy: once, Handler: func(*message.Message) ([]*message.Message, error) {
				return []*message.Message{message.NewMessage("2", nil)}, nil
			}, Faults: map[int]retrytest.Fault{1: retrytest.Unpublishable}},
			[]string{"1 a send orders", "2 a process orders, in 1, publish 1",
				"3 a wait orders, in 1, publish 1, call 2: …",
				"4 a process orders, in 1, publish 1, previous-call 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTraced(t, tracing.Config{})
			tr.run(test.service, tr.published("1"))
			got := tr.story()
			if test.want == nil { // as often as the broker says
				assert.Regexp(t, `\d a dead-letter orders, in 1, publish 1: .+$`, got)
				return
			}
			for _, line := range test.want {
				begin, cut := strings.CutSuffix(line, "…")
				if cut {
					assert.Contains(t, got, begin)
					got = cutLine(got, begin, line)
				}
			}
			assert.Equal(t, lines(test.want...), got)
		})
	}
}

// No handler was called with a message that cannot be decoded.
func TestUndecodableHasNoAttempt(t *testing.T) {
	tr := newTraced(t, tracing.Config{})
	tr.run(retrytest.Service{ConsumerHandler: fails, Unmarshal: func(*message.Message) error { return errDown }},
		tr.published("1"))
	told := attributes(tr.only("dead-letter orders"))
	assert.Equal(t, "undecodable", told["amqpretry.reason"])
	assert.NotContains(t, told, "amqpretry.attempt")
	assert.NotContains(t, told, "amqpretry.calls")
}

// cutLine replaces the line that begins so.
func cutLine(text, begin, by string) string {
	all := strings.Split(text, "\n")
	for i, line := range all {
		if strings.HasPrefix(line, begin) && len(line) > len(begin) {
			all[i] = by
		}
	}

	return strings.Join(all, "\n")
}

// What comes after a call belongs to the trace of the message as it arrived.
func TestChangedMetadata(t *testing.T) {
	for name, change := range map[string]func(*message.Message){
		"cleared": func(msg *message.Message) { clear(msg.Metadata) },
		"the call's own": func(msg *message.Message) {
			propagation.TraceContext{}.Inject(msg.Context(), propagation.MapCarrier(msg.Metadata))
		},
		"another's": func(msg *message.Message) { msg.Metadata.Set("traceparent", custom) },
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTraced(t, tracing.Config{})
			policy := config.Policy{Delays: []time.Duration{time.Second}, Immediate: 1}
			tr.run(retrytest.Service{Policy: policy, ConsumerHandler: func(msg *message.Message) error {
				change(msg)
				return errDown
			}}, tr.published("1"))
			assert.Equal(t, lines(
				"1 a send orders",
				"2 a process orders, in 1, publish 1: the warehouse does not answer",
				"3 a process orders, in 1, publish 1, previous-call 2: the warehouse does not answer",
				"4 a wait orders, in 1, publish 1, call 3",
				"5 a process orders, in 1, publish 1, previous-call 3: the warehouse does not answer",
				"6 a dead-letter orders, in 1, publish 1, call 5",
			), tr.story())
		})
	}
}

// A message that its handler returns, and that could not be published, links to the call once.
func TestReturnedItself(t *testing.T) {
	tr := newTraced(t, tracing.Config{})
	tr.run(retrytest.Service{Policy: config.Policy{Delays: []time.Duration{time.Second}},
		Handler: func(msg *message.Message) ([]*message.Message, error) { return []*message.Message{msg}, nil },
		Faults:  map[int]retrytest.Fault{1: retrytest.Unpublishable}}, tr.published("1"))
	wait := tr.only("wait orders")
	require.Len(t, wait.Links(), 2)
	assert.Equal(t, []string{"publish", "call"}, []string{linkName(wait.Links()[0]), linkName(wait.Links()[1])})
}

// A panic is an error on the span, and one for the retry middleware.
func TestPanic(t *testing.T) {
	for name, test := range map[string]struct {
		value  any
		stacks bool
		want   string
	}{
		"text":       {"no", false, "handler panicked: no"},
		"error":      {errDown, false, "handler panicked: the warehouse does not answer"},
		"nil":        {nil, false, "handler panicked: panic called with nil argument"},
		"with stack": {"no", true, "handler panicked: no"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTraced(t, tracing.Config{})
			result := tr.run(retrytest.Service{Policy: config.Policy{Mode: config.ModeDeadLetter},
				PanicStacks: test.stacks, ConsumerHandler: func(*message.Message) error { panic(test.value) },
			}, tr.published("1"))
			result.AssertDeadLettered(t, retry.ReasonPanic)
			span := tr.only("process orders")
			assert.Equal(t, codes.Error, span.Status().Code)
			assert.Equal(t, test.want, span.Status().Description)
			if stack := attributes(span)["exception.stacktrace"]; test.stacks {
				assert.Contains(t, stack, "life_test.go")
			} else {
				assert.Nil(t, stack, "it is a secret")
			}
			assert.Equal(t, "*retry.PanicError", attributes(span)["error.type"])

			var e *retry.PanicError
			require.ErrorAs(t, result.Steps[0].Err, &e)
			assert.Contains(t, string(e.Stack), "TestPanic", "the stack is that of the handler")
		})
	}
}

func TestGoexit(t *testing.T) {
	tr := newTraced(t, tracing.Config{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = tr.Middleware(func(*message.Message) ([]*message.Message, error) {
			runtime.Goexit()
			return nil, nil
		})(message.NewMessage("1", nil))
	}()
	<-done
	assert.Equal(t, "1 a process: the handler called runtime.Goexit", tr.story())
}

// Error texts are redacted by the retrier's ErrorText, or the Config's.
func TestRedaction(t *testing.T) {
	redacted := func(error) string { return "redacted" }
	for name, test := range map[string]struct {
		config  tracing.Config
		service retrytest.Service
	}{
		"by the retrier": {tracing.Config{}, retrytest.Service{ErrorText: redacted}},
		"by the config":  {tracing.Config{ErrorText: redacted}, retrytest.Service{}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, undecodable := range []bool{false, true} {
				tr := newTraced(t, test.config)
				s := test.service
				s.Policy, s.ConsumerHandler = config.Policy{Mode: config.ModeDeadLetter}, fails
				if undecodable {
					s.Unmarshal = func(*message.Message) error { return errDown }
				}
				tr.run(s, message.NewMessage("1", nil))
				assert.Contains(t, tr.story(), ": redacted")
				for _, span := range tr.spans() {
					assert.NotContains(t, span.Status().Description, "warehouse")
					for _, value := range attributes(span) {
						assert.NotContains(t, fmt.Sprint(value), "warehouse")
					}
				}
			}
		})
	}
}

// Errors are foreign code.
func TestErrorsThatPanic(t *testing.T) {
	tr := newTraced(t, tracing.Config{})
	tr.run(retrytest.Service{Policy: config.Policy{Mode: config.ModeDeadLetter},
		ConsumerHandler: func(*message.Message) error { return (*nilError)(nil) }}, message.NewMessage("1", nil))
	assert.Contains(t, tr.story(), "the error's text is lost")
}

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }
func (e *nilError) Is(error) bool { return e.text == "" }

// The message is not what it was, if a close has taken it away.
func TestWithdrawn(t *testing.T) {
	tr := newTraced(t, tracing.Config{})
	tr.run(retrytest.Service{ConsumerHandler: func(msg *message.Message) error { return msg.Context().Err() },
		Faults: map[int]retrytest.Fault{1: retrytest.Shutdown}}, message.NewMessage("1", nil))
	spans := tr.spans()
	require.Len(t, spans, 2)
	assert.Equal(t, true, attributes(spans[0])["amqpretry.withdrawn"])
	assert.Equal(t, codes.Unset, spans[0].Status().Code, "no failure")
	assert.NotContains(t, attributes(spans[1]), "amqpretry.withdrawn")
}

// The destination is the queue, not the topic.
func TestQueue(t *testing.T) {
	tr := newTraced(t, tracing.Config{})
	tr.run(retrytest.Service{Queue: "orders_shop", Handler: succeeds}, message.NewMessage("1", nil))
	assert.Equal(t, "orders", attributes(tr.only("process orders_shop"))["amqpretry.topic"])
}

// Jitter makes a wait shorter than the delay.
func TestJitter(t *testing.T) {
	tr := newTraced(t, tracing.Config{})
	tr.run(retrytest.Service{Policy: config.Policy{Delays: []time.Duration{10 * time.Second}, Jitter: 0.5},
		Random: 0.5, ConsumerHandler: fails}, message.NewMessage("1", nil))
	wait := tr.only("wait orders")
	assert.InDelta(t, 7.5, attributes(wait)["amqpretry.delay"], 0)
	assert.Equal(t, 7500*time.Millisecond, wait.EndTime().Sub(wait.StartTime()))
}

// Events as a retrier tells them where no handler has seen the message.
func TestEvents(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	event := retry.Event{Kind: retry.EventAbandoned, At: at, Took: time.Second, Queue: "orders", Err: errDown,
		Class: retry.ClassError, Message: message.NewMessage("1", nil)}

	tr := newTraced(t, tracing.Config{ErrorText: func(error) string { return "redacted" }})
	tr.OnEvent(event)
	span := tr.only("abandon orders")
	assert.Equal(t, "redacted", span.Status().Description, "why it was given up")
	assert.Equal(t, at.Add(-time.Second), span.StartTime())
	assert.Equal(t, at, span.EndTime())

	tr = newTraced(t, tracing.Config{})
	event.Kind, event.Class = retry.EventDeadLettered, retry.ClassUndecodable
	tr.OnEvent(event)
	span = tr.only("dead-letter orders")
	assert.Equal(t, codes.Error, span.Status().Code)
	assert.Empty(t, span.Status().Description, "the retrier's ErrorText is out of reach, so there is no text")
	assert.Equal(t, "*errors.errorString", attributes(span)["error.type"])
	assert.Empty(t, span.Events())

	tr = newTraced(t, tracing.Config{})
	event.Message = nil
	tr.OnEvent(event)
	tr.OnEvent(retry.Event{Kind: retry.EventConnected})
	assert.Empty(t, tr.spans())
}

// A header of ours travels for it, and handlers never see it.
func TestHeader(t *testing.T) {
	tr := newTraced(t, tracing.Config{})
	result := tr.run(retrytest.Service{Policy: twoRetries, ConsumerHandler: func(msg *message.Message) error {
		for key := range msg.Metadata {
			assert.False(t, header.IsOwn(key), key)
		}

		return errDown
	}}, tr.published("1"))
	spans := tr.spans()
	for step, span := range []int{1, 3, 5} {
		assert.Equal(t, traceparent(spans[span].SpanContext()), result.Steps[step].Headers[header.Trace])
	}
	assert.Equal(t, result.Steps[2].Headers[header.Trace], result.DeadLetter.Trace)
}

// Not sampled: no span, and the decision travels with the message.
func TestNotSampled(t *testing.T) {
	first := true
	sampler := samplerFunc(func(p sdktrace.SamplingParameters) sdktrace.SamplingDecision {
		if first {
			first = false
			return sdktrace.Drop
		}

		return sdktrace.RecordAndSample
	})
	tr := newTraced(t, tracing.Config{}, sdktrace.WithSampler(sdktrace.ParentBased(sampler)))
	result := tr.run(retrytest.Service{Policy: twoRetries, ConsumerHandler: fails}, message.NewMessage("1", nil))
	assert.Empty(t, tr.recorder.Started(), "the first call has decided for all")
	assert.Regexp(t, "^00-.*-00$", result.DeadLetter.Trace)

	tr.run(retrytest.Service{Handler: succeeds}, message.NewMessage("2", nil))
	assert.Equal(t, "1 a process orders", tr.story())
}

type samplerFunc func(sdktrace.SamplingParameters) sdktrace.SamplingDecision

func (f samplerFunc) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	return sdktrace.SamplingResult{Decision: f(p)}
}
func (f samplerFunc) Description() string { return "" }
