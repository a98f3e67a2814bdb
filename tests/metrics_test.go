package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
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
	"github.com/amqpretry/watermill-retry/middleware/metrics"
	"github.com/amqpretry/watermill-retry/middleware/tracing"
	"github.com/amqpretry/watermill-retry/retry"
)

type measured struct {
	*metrics.Metrics
	t        *testing.T
	registry *prometheus.Registry
}

func newMeasured(t *testing.T, c metrics.Config) measured {
	t.Helper()
	m := measured{t: t, registry: prometheus.NewPedanticRegistry()}
	c.Registerer = m.registry
	m.Metrics = must(metrics.New(c))(t)

	return m
}

// sum adds up the series of a name that have all of these labels: "result=retried". Of histograms
// it is the count.
func (m measured) sum(name string, labels ...string) int {
	m.t.Helper()
	families, err := m.registry.Gather()
	require.NoError(m.t, err, "a scrape must never fail")

	sum := 0
	for _, family := range families {
		if family.GetName() != "amqpretry_"+name {
			continue
		}
		for _, metric := range family.GetMetric() {
			if hasLabels(metric, labels) {
				sum += int(metric.GetCounter().GetValue()) + int(metric.GetGauge().GetValue()) +
					int(metric.GetHistogram().GetSampleCount())
			}
		}
	}

	return sum
}

func hasLabels(metric *dto.Metric, wanted []string) bool {
	has := map[string]bool{}
	for _, l := range metric.GetLabel() {
		has[l.GetName()+"="+l.GetValue()] = true
	}
	for _, w := range wanted {
		if !has[w] {
			return false
		}
	}

	return true
}

func (m measured) becomes(want int, name string, labels ...string) {
	m.t.Helper()
	await.Until(m.t, func() bool { return m.sum(name, labels...) == want }, "%s%v becomes %v", name, labels, want)
}

// Messages of all fates, and what a scrape says of them.
func TestMetrics(t *testing.T) {
	t.Parallel()
	m := newMeasured(t, metrics.Config{DepthTimeout: await.Bound}) // no scrape gives up
	proceed := make(chan struct{})
	svc := newService(t, setup{
		Options: amqpretry.Options{
			Policies: config.Policies{Default: config.Policy{Delays: ms(100), Immediate: 1}},
			OnEvent:  m.OnEvent, Concurrency: 8,
			HoldWarning: await.Bound, // no delivery counts as held while the machine stands still
			Decide: func(f retry.Failure) error { // what no handler saw is no attempt, whatever it is taken for
				if f.Class == retry.ClassUndecodable {
					return retry.Drop(f.Err)
				}

				return f.Err
			},
		},
		Configure: func(c *amqp.Config) { c.Marshaler = picky{} },
		Handler: func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			switch {
			case msg.UUID == "slow":
				<-proceed
			case msg.UUID == "once" && attempt.Calls < 2, msg.UUID == "never":
				return errors.New("no")
			case msg.UUID == "panics":
				panic("no")
			case msg.UUID == "permanent":
				return retry.Permanent(errors.New("no"))
			case msg.UUID == "drop":
				return retry.Drop(errors.New("no"))
			case msg.UUID == "later" && attempt.Calls == 0:
				return retry.Postpone(50 * time.Millisecond)
			}

			return nil
		},
	})
	defer m.Watch(svc.Retrier)()
	svc.run()
	m.becomes(1, "consuming_subscriptions", "topic="+svc.Queue)
	assert.Zero(t, m.sum("dead_letters_total"))

	svc.publish("ok", "slow", "once", "never", "panics", "permanent", "drop", "later", "reject")
	m.becomes(3, "dead_letters_total")
	m.becomes(3, "messages_total", "result=succeeded") // ok, once, later
	m.becomes(2, "messages_total", "result=dropped")
	m.becomes(1, "calls_in_flight")
	close(proceed)
	m.becomes(0, "calls_in_flight")
	// The events come after what they tell of, and a busy broker says 0 of a quorum queue at first.
	m.becomes(4, "messages_total", "result=succeeded")
	m.becomes(7, "forward_duration_seconds")
	m.becomes(3, "queue_messages_ready", "role=dead-letter", "queue="+svc.dlq())

	topic := "topic=" + svc.Queue
	for series, want := range map[string]int{
		"calls_total outcome=succeeded": 4,
		// once: both tries; never: two tries, then the retry
		"calls_total outcome=error":                      2 + 3,
		"calls_total outcome=panic":                      3,
		"calls_total outcome=permanent":                  1,
		"calls_total outcome=drop":                       2,
		"calls_total outcome=drop handler=":              1,
		"calls_total outcome=postponed":                  1,
		"calls_total outcome=requeued":                   0,
		"call_duration_seconds":                          15, // all but the undecodable one
		"messages_total result=succeeded":                4,
		"messages_total result=retried":                  3,
		"messages_total result=postponed":                1,
		"messages_total result=dead-lettered":            3,
		"messages_total result=dropped":                  2,
		"messages_total result=abandoned":                0,
		"dead_letters_total reason=exhausted":            1,
		"dead_letters_total reason=panic":                1,
		"dead_letters_total reason=permanent":            1,
		"attempts_until_success":                         4,
		"recovery_duration_seconds":                      1, // once: to be postponed is no failure
		"forward_duration_seconds":                       7,
		"held_deliveries queue=" + svc.Queue:             0,
		"connections_opened_total connection=subscriber": 1,
		"connections_opened_total connection=forwarder":  1,
		"connections_lost_total":                         0,
		"queue_depths_up":                                1,
		"queue_depths_errors_total":                      0,
	} {
		parts := strings.Split(series, " ")
		labels := parts[1:]
		switch parts[0] {
		case "calls_total", "messages_total", "dead_letters_total", "attempts_until_success",
			"call_duration_seconds":
			labels = append(labels, topic)
		}
		assert.Equal(t, want, m.sum(parts[0], labels...), series)
	}

	svc.close()
	assert.Zero(t, m.sum("consuming_subscriptions"))
}

// A message that a close takes away from its handler is in flight no more, and has not failed.
func TestMetrics_OfAClose(t *testing.T) {
	t.Parallel()
	m := newMeasured(t, metrics.Config{})
	released := make(chan struct{})
	svc := start(t, setup{
		Options: amqpretry.Options{CloseTimeout: 500 * time.Millisecond, OnEvent: func(e retry.Event) {
			m.OnEvent(e)
			if e.Kind == retry.EventRequeued {
				close(released) // later than the retrier waits, sooner than the router does
			}
		}},
		Handler: func(*message.Message) error { <-released; return errors.New("too late") },
	})
	svc.publish("slow")
	m.becomes(1, "calls_in_flight")

	svc.close()
	assert.Zero(t, m.sum("calls_in_flight"))
	assert.Equal(t, 1, m.sum("messages_total", "result=requeued"))
	assert.Equal(t, 1, m.sum("messages_total"))
	assert.Equal(t, 1, m.sum("calls_total"))
}

// Two retriers of a process share retry queues: both see them, and a scrape has each queue once.
func TestMetrics_OfSharedQueues(t *testing.T) {
	t.Parallel()
	m := newMeasured(t, metrics.Config{DepthTimeout: await.Bound})
	prefix := uniqueName("shared")
	options := shared(t, prefix, false, time.Hour)
	options.OnEvent = m.OnEvent
	for range 2 {
		svc := start(t, setup{
			Options: options, Handler: func(*message.Message) error { return errors.New("no") },
		})
		defer m.Watch(svc.Retrier)()
		svc.publish("a", "b")
	}

	queue := "queue=" + prefix + ".1h"
	m.becomes(4, "queue_messages_ready", queue)
	m.becomes(4, "queue_messages_ready", "role=retry")
	m.becomes(4, "queue_messages_ready", queue, "main_queue=")
	assert.Equal(t, 1, m.sum("queue_depths_up"))
}

// What the broker does to a service: it freezes, blocks, cuts, refuses. No scrape fails, and none
// takes longer than it may.
func TestMetrics_OfABrokerInTrouble_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t)
	const timeout = time.Second
	m := newMeasured(t, metrics.Config{DepthTimeout: timeout})
	alarm := make(chan struct{})
	svc := start(t, setup{
		URI: broker.URI, Queue: "orders", KeepObjects: true, Options: amqpretry.Options{OnEvent: m.OnEvent},
		Handler: func(msg *message.Message) error {
			if msg.UUID == "in an alarm" {
				<-alarm
			}

			return retry.Permanent(errors.New("no"))
		},
	})
	defer m.Watch(svc.Retrier)()
	svc.publish("a", "b")
	m.becomes(2, "queue_messages_ready", "queue=orders.dlq")

	// The dead-letter queue takes no more.
	broker.Ctl("set_policy", "--apply-to", "queues", "full", `^orders\.dlq$`,
		`{"max-length":1,"overflow":"reject-publish"}`)
	await.Until(t, func() bool {
		svc.publish(fmt.Sprint("more-", time.Now().UnixNano()))
		return m.sum("held_deliveries", "queue=orders") > 0
	}, "deliveries are held")
	m.becomes(0, "calls_in_flight") // what is held is in no handler's hands
	broker.Ctl("clear_policy", "full")
	m.becomes(0, "held_deliveries")

	// The broker is frozen.
	broker.Pause()
	began := time.Now()
	assert.Zero(t, m.sum("queue_depths_up"))
	assert.Less(t, time.Since(began), 20*timeout, "without a timeout, until the heartbeats fail: 30 s")
	assert.GreaterOrEqual(t, m.sum("queue_depths_errors_total"), 1)
	assert.Zero(t, m.sum("queue_messages_ready"), "no number is better than an old one")
	assert.Equal(t, 2, m.sum("connections_opened_total", "connection=subscriber")+m.sum("connections_opened_total",
		"connection=forwarder"))
	broker.Resume()
	m.becomes(1, "queue_depths_up")

	// An alarm blocks who publishes, and the depths can be read all the same.
	svc.publish("in an alarm")
	m.becomes(1, "calls_in_flight")
	broker.Ctl("set_vm_memory_high_watermark", "0.00001")
	close(alarm)
	m.becomes(1, "blocked_connections", "connection=forwarder")
	m.becomes(1, "queue_depths_up")
	broker.Ctl("set_vm_memory_high_watermark", "0.6")
	m.becomes(0, "blocked_connections")

	// The connections are cut.
	lost := m.sum("connections_lost_total", "connection=subscriber")
	broker.Ctl("close_all_connections", "a test")
	m.becomes(lost+1, "connections_lost_total", "connection=subscriber")
	m.becomes(lost+2, "connections_opened_total", "connection=subscriber")
	m.becomes(1, "consuming_subscriptions")
	m.becomes(1, "queue_depths_up")
}

func newTracing(t *testing.T) (*tracing.Tracing, *tracetest.SpanRecorder) {
	t.Helper()
	r := tracetest.NewSpanRecorder()
	traced := must(tracing.New(tracing.Config{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r)),
		Propagator:     propagation.TraceContext{},
	}))(t)

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
		Tiers: true, Options: options, Configure: func(c *amqp.Config) {
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
	stock := must(amqp.NewPublisher(svc.Retrier.Config(), watermill.NopLogger{}))(t)
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

	client := openDLQ(t, brokertest.URI(t))
	letters := client.Queue(svc.Queue)
	letter := must(letters.Get(t.Context(), "1"))(t)
	replayed.Store(true)
	report := must(letters.Run(t.Context(), dlq.Plan{Kind: dlq.Replay}))(t)
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
		svc := newService(t, setup{Queue: topic, Configure: configure})
		t.Cleanup(func() { svc.Broker.Remove("x." + topic) })
		plain := must(svc.Retrier.NewPublisher())(t)
		delays := must(svc.Retrier.NewDelayPublisher(plain, delay.Options{}))(t)
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

// The retrier tells how many messages wait and how many are dead, for each queue beside the main
// queues.
func TestQueueDepths(t *testing.T) {
	t.Parallel()

	c := setup{Tiers: true, Handler: func(msg *message.Message) error {
		if msg.UUID == "dead" {
			return retry.Permanent(errFate)
		}

		return errFate
	}}
	c.Options.Policies = retries(time.Hour, 2*time.Hour)
	svc := start(t, c)
	svc.publish("1", "2", "dead")
	await.Until(t, func() bool {
		return len(svc.Events(retry.EventRetried, retry.EventDeadLettered)) == 3
	}, "all end")

	expected := []retry.QueueDepth{
		{Queue: svc.dlq(), Role: retry.QueueRoleDeadLetter, MainQueue: svc.Queue, Messages: 1},
		{Queue: svc.retryQueue(time.Hour), Role: retry.QueueRoleRetry, MainQueue: svc.Queue, Messages: 2,
			Wait: time.Hour},
		{Queue: svc.retryQueue(2 * time.Hour), Role: retry.QueueRoleRetry, MainQueue: svc.Queue, Wait: 2 * time.Hour},
	}
	var depths []retry.QueueDepth
	await.Until(t, func() bool { // a quorum queue may not have counted yet
		var err error
		depths, err = svc.Retrier.QueueDepths(t.Context())
		return err == nil && assert.ObjectsAreEqual(expected, depths)
	}, "%v", depths)

	svc.Broker.Remove("", svc.dlq()) // the first that it looks at
	await.Until(t, func() bool {
		depths, err := svc.Retrier.QueueDepths(t.Context())
		return assert.ErrorContains(t, err, svc.dlq()) && assert.ObjectsAreEqual(expected[1:], depths)
	}, "the rest is told all the same")

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for range 300 { // a look that comes to its end in the same moment
		if depths, err := svc.Retrier.QueueDepths(cancelled); err == nil {
			require.Len(t, depths, 2, "nothing is missing without an error")
		}
	}
}

// Shared retry queues belong to no main queue, and are looked at once.
func TestQueueDepths_Shared(t *testing.T) {
	t.Parallel()

	uri, prefix, a, b := brokertest.URI(t), uniqueName("shared"), uniqueName("depth"), uniqueName("depth")
	retrier := newRetrier(t, amqp.NewDurableQueueConfig(uri), shared(t, prefix, false, ms(100)...))
	depths := must(retrier.QueueDepths(t.Context()))(t)
	assert.Empty(t, depths, "nothing is subscribed to")

	sub := must(retrier.NewSubscriber())(t)
	broker := newRabbit(t, uri)
	for _, topic := range []string{a, b} {
		t.Cleanup(func() { broker.Remove("", topic, topic+".dlq") })
		require.NoError(t, sub.SubscribeInitialize(topic))
	}
	depths = must(retrier.QueueDepths(t.Context()))(t)
	mains := map[string]string{}
	for _, d := range depths {
		mains[d.Queue] = d.MainQueue
	}
	assert.Equal(t, map[string]string{a + ".dlq": a, b + ".dlq": b, prefix + ".100ms": ""}, mains)
}

// A broker that does not answer costs the time that it is given, and nothing else.
func TestQueueDepths_NoAnswer(t *testing.T) {
	t.Parallel()

	network := newProxy(t, brokertest.URI(t))
	svc := start(t, setup{Tiers: true, URI: network.URI, Handler: succeed})
	_, err := svc.Retrier.QueueDepths(t.Context())
	require.NoError(t, err)

	network.stallAnswers(observer)
	for range 2 { // the second look waits for the first, which still waits for the broker
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		began := time.Now()
		_, err = svc.Retrier.QueueDepths(ctx)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Less(t, time.Since(began), 15*time.Second, "amqp091-go gives up a silent connection after 30 s")
	}
	svc.publish("1")
	await.Until(t, func() bool { return svc.Calls.count() == 1 }, "messages go on")

	network.resume()
	await.Until(t, func() bool {
		depths, err := svc.Retrier.QueueDepths(t.Context())
		return err == nil && len(depths) == 2
	}, "it answers again")
}
