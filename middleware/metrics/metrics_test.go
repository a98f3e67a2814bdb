package metrics_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/middleware/metrics"
	"github.com/amqpretry/watermill-retry/retry"
)

func newMetrics(t testing.TB, c metrics.Config) (*metrics.Metrics, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	c.Registerer = registry
	m, err := metrics.New(c)
	require.NoError(t, err)

	return m, registry
}

func equal(t *testing.T, want, got float64, what ...any) {
	t.Helper()
	assert.InDelta(t, want, got, 1e-9, what...)
}

// values of all series by their text form, without buckets; the zeros only on request.
func values(t testing.TB, registry prometheus.Gatherer, zeros bool) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)

	found := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, l := range metric.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			add := func(suffix string, value float64) {
				if value != 0 || zeros {
					found[family.GetName()+suffix+"{"+strings.Join(labels, ",")+"}"] = value
				}
			}
			switch family.GetType() {
			case dto.MetricType_COUNTER:
				add("", metric.GetCounter().GetValue())
			case dto.MetricType_GAUGE:
				add("", metric.GetGauge().GetValue())
			default:
				add("_count", float64(metric.GetHistogram().GetSampleCount()))
				add("_sum", metric.GetHistogram().GetSampleSum())
			}
		}
	}

	return found
}

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// event is one about the handler "ship" of topic "orders".
func event(kind retry.EventKind, change ...func(*retry.Event)) retry.Event {
	e := retry.Event{Kind: kind, At: now, Topic: "orders", Queue: "orders", Handler: "ship"}
	switch kind {
	case retry.EventCall, retry.EventDropped, retry.EventAbandoned:
	default:
		e.Took = 500 * time.Millisecond
	}
	for _, c := range change {
		c(&e)
	}

	return e
}

func ofDeadLetters(e *retry.Event) { e.Queue, e.DeadLetters = "orders.dlq", true }

func class(c retry.Class) func(*retry.Event) {
	return func(e *retry.Event) { e.Class = c }
}

func reason(r retry.Reason) func(*retry.Event) {
	return func(e *retry.Event) {
		e.Verdict = retry.Verdict{Action: retry.ActionDeadLetter, Reason: r}
	}
}

// died is for an error with this text.
func died(text string) func(*retry.Event) {
	return func(e *retry.Event) {
		reason(retry.ReasonExhausted)(e)
		e.Cause = &retry.Cause{Error: text, ErrorType: "*errors.errorString", Handler: e.Handler,
			Reason: retry.ReasonExhausted}
	}
}

type series = map[string]float64

func sum(all ...series) series {
	total := series{}
	for _, s := range all {
		maps.Copy(total, s)
	}

	return total
}

// ofCall are the series of a call of half a second.
func ofCall(outcome string) series {
	of := `{handler="ship",outcome="` + outcome + `",topic="orders"}`

	return series{`amqpretry_calls_total` + of: 1, `amqpretry_call_duration_seconds_count` + of: 1,
		`amqpretry_call_duration_seconds_sum` + of: .5}
}

func ofMessage(result string) series {
	return series{`amqpretry_messages_total{handler="ship",result="` + result + `",topic="orders"}`: 1}
}

// ofSuccess are those of a message that had failed before.
func ofSuccess(attempts, recovery float64) series {
	const of = `{handler="ship",topic="orders"}`
	s := series{
		`amqpretry_attempts_until_success_count` + of: 1, `amqpretry_attempts_until_success_sum` + of: attempts,
		`amqpretry_recovery_duration_seconds_count` + of: 1,
	}
	if recovery > 0 {
		s[`amqpretry_recovery_duration_seconds_sum`+of] = recovery
	}

	return sum(ofCall("succeeded"), ofMessage("succeeded"), s)
}

var forwarded = series{`amqpretry_forward_duration_seconds_count{topic="orders"}`: 1,
	`amqpretry_forward_duration_seconds_sum{topic="orders"}`: .5}

func TestOnEvent(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		events []retry.Event
		want   series
	}{
		"an attempt that goes on": {
			[]retry.Event{event(retry.EventCall)},
			series{`amqpretry_calls_in_flight{handler="ship",topic="orders"}`: 1},
		},
		"a success at the third attempt": {
			[]retry.Event{event(retry.EventCall), event(retry.EventSucceeded, func(e *retry.Event) {
				e.Attempt = retry.Attempt{Number: 3, Calls: 7, FirstFailure: now.Add(-20 * time.Second)}
			})}, ofSuccess(3, 20),
		},
		"a first failure in the future of a slow clock": {
			[]retry.Event{event(retry.EventCall), event(retry.EventSucceeded, func(e *retry.Event) {
				e.Attempt.FirstFailure = now.Add(time.Minute)
			})}, ofSuccess(1, 0),
		},
		"a shutdown": {
			[]retry.Event{event(retry.EventCall), event(retry.EventRequeued)},
			sum(ofCall("requeued"), ofMessage("requeued")),
		},
		"an immediate try that fails, then a retry": {
			[]retry.Event{
				event(retry.EventCall), event(retry.EventFailed, class(retry.ClassError)),
				event(retry.EventCall), event(retry.EventFailed, class(retry.ClassPanic)), event(retry.EventRetried),
			},
			sum(ofCall("error"), ofCall("panic"), ofMessage("retried"), forwarded),
		},
		"a dead letter that no handler saw": {
			[]retry.Event{
				event(retry.EventUnhandled, class(retry.ClassUndecodable), func(e *retry.Event) {
					e.Handler, e.Took = "", 0
				}),
				event(retry.EventDeadLettered, reason(retry.ReasonUndecodable), func(e *retry.Event) {
					e.Handler = ""
				}),
			},
			sum(forwarded, series{
				`amqpretry_calls_total{handler="",outcome="undecodable",topic="orders"}`:                      1,
				`amqpretry_messages_total{handler="",result="dead-lettered",topic="orders"}`:                  1,
				`amqpretry_dead_letters_total{reason="undecodable",topic="orders"}`:                           1,
				`amqpretry_dead_letter_causes_total{fingerprint="other",reason="undecodable",topic="orders"}`: 1,
			}),
		},
		"one that no handler saw, and that Decide wants retried": {
			[]retry.Event{event(retry.EventUnhandled, class(retry.ClassError))},
			series{`amqpretry_calls_total{handler="ship",outcome="error",topic="orders"}`: 1},
		},
		"postponed, dropped, abandoned": {
			[]retry.Event{event(retry.EventPostponed), event(retry.EventDropped), event(retry.EventAbandoned)},
			sum(ofMessage("postponed"), ofMessage("dropped"), ofMessage("abandoned"), forwarded),
		},
		"held": {
			[]retry.Event{
				{Kind: retry.EventHeld, Queue: "orders", Held: 3}, {Kind: retry.EventHeld, Queue: "orders", Held: 7},
				{Kind: retry.EventHeld, Queue: "mails", Held: 2}, {Kind: retry.EventReleased, Queue: "mails"},
			},
			map[string]float64{`amqpretry_held_deliveries{queue="orders"}`: 7},
		},
		"connections": {
			[]retry.Event{
				{Kind: retry.EventConnected, Connection: "subscriber"},
				{Kind: retry.EventConnected, Connection: "forwarder"},
				{Kind: retry.EventBlocked, Connection: "forwarder"},
				{Kind: retry.EventBlocked, Connection: "subscriber"},
				{Kind: retry.EventDisconnected, Connection: "subscriber"},
				{Kind: retry.EventUnblocked, Connection: "subscriber"},
			},
			map[string]float64{
				`amqpretry_connections_opened_total{connection="subscriber"}`: 1,
				`amqpretry_connections_opened_total{connection="forwarder"}`:  1,
				`amqpretry_connections_lost_total{connection="subscriber"}`:   1,
				`amqpretry_blocked_connections{connection="forwarder"}`:       1,
			},
		},
		"consuming": {
			[]retry.Event{
				event(retry.EventConsuming), event(retry.EventConsuming), event(retry.EventStoppedConsuming),
				event(retry.EventTopologyRepaired), event(retry.EventReturnedEarly),
				event(retry.EventUnhandled, class(retry.ClassExpired)),
				event(retry.EventUnhandled, class(retry.ClassPostponed)),
			},
			map[string]float64{
				`amqpretry_consuming_subscriptions{topic="orders"}`: 1,
				`amqpretry_topology_repairs_total{queue="orders"}`:  1,
				`amqpretry_early_returns_total{queue="orders"}`:     1,
			},
		},
		"dead letters of the topic": {
			[]retry.Event{
				event(retry.EventTopologyDeclared, ofDeadLetters), event(retry.EventConsuming, ofDeadLetters),
				event(retry.EventConsuming, ofDeadLetters), event(retry.EventStoppedConsuming, ofDeadLetters),
				event(retry.EventSetAside, ofDeadLetters), event(retry.EventWithdrawn, ofDeadLetters),
			},
			map[string]float64{
				`amqpretry_dead_letters_set_aside_total{topic="orders"}`: 1,
				`amqpretry_withdrawn_deliveries_total{topic="orders"}`:   1,
			},
		},
		"what is in no list": {
			[]retry.Event{
				event(retry.EventFailed, class("of a later version")),
				event(retry.EventDeadLettered, reason("of a later version")),
				{Kind: retry.EventConnected, Connection: "tunnel"}, {Kind: retry.EventBlocked, Connection: "tunnel"},
				{Kind: "of a later version"}, {},
			},
			sum(ofCall("other"), ofMessage("dead-lettered"), forwarded, series{
				`amqpretry_calls_in_flight{handler="ship",topic="orders"}`:                              -1, // it never began
				`amqpretry_dead_letters_total{reason="other",topic="orders"}`:                           1,
				`amqpretry_dead_letter_causes_total{fingerprint="other",reason="other",topic="orders"}`: 1,
				`amqpretry_connections_opened_total{connection="other"}`:                                1,
				`amqpretry_blocked_connections{connection="other"}`:                                     1,
			}),
		},
		"zero values": {
			[]retry.Event{
				{Kind: retry.EventCall}, {Kind: retry.EventSucceeded}, {Kind: retry.EventHeld},
				{Kind: retry.EventTopologyDeclared}, {Kind: retry.EventRetried},
			},
			map[string]float64{
				`amqpretry_calls_total{handler="",outcome="succeeded",topic=""}`:                 1,
				`amqpretry_call_duration_seconds_count{handler="",outcome="succeeded",topic=""}`: 1,
				`amqpretry_messages_total{handler="",result="succeeded",topic=""}`:               1,
				`amqpretry_messages_total{handler="",result="retried",topic=""}`:                 1,
				`amqpretry_attempts_until_success_count{handler="",topic=""}`:                    1,
				`amqpretry_attempts_until_success_sum{handler="",topic=""}`:                      1,
				`amqpretry_forward_duration_seconds_count{topic=""}`:                             1,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, registry := newMetrics(t, metrics.Config{})
			for _, e := range c.events {
				m.OnEvent(e)
			}
			assert.Equal(t, c.want, values(t, registry, false))
		})
	}
}

// An alert on an increase sees the first event only if there was a 0 before it.
func TestSeriesBeginAtZero(t *testing.T) {
	t.Parallel()

	zero := func(e retry.Event) []string {
		m, registry := newMetrics(t, metrics.Config{})
		m.OnEvent(e)
		var names []string
		for name, value := range values(t, registry, true) {
			if value == 0 {
				names = append(names, name)
			}
		}

		return names
	}
	topical := []string{
		`amqpretry_dead_letters_total{reason="exhausted",topic="orders"}`,
		`amqpretry_dead_letters_total{reason="too-large",topic="orders"}`,
		`amqpretry_connections_lost_total{connection="forwarder"}`,
		`amqpretry_blocked_connections{connection="subscriber"}`,
		`amqpretry_queue_depths_errors_total{}`,
	}
	queued := []string{`amqpretry_held_deliveries{queue="orders"}`, `amqpretry_topology_repairs_total{queue="orders"}`,
		`amqpretry_early_returns_total{queue="orders"}`}

	assert.Subset(t, zero(event(retry.EventTopologyDeclared)), slices.Concat(topical, queued))
	assert.Subset(t, zero(event(retry.EventConsuming)), slices.Concat(topical, queued))
	assert.Subset(t, zero(event(retry.EventCall)), slices.Concat(topical, []string{
		`amqpretry_calls_total{handler="ship",outcome="error",topic="orders"}`,
		`amqpretry_messages_total{handler="ship",result="dead-lettered",topic="orders"}`,
	}))
}

func TestLint(t *testing.T) {
	t.Parallel()
	_, registry := everything(t)

	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	assert.Equal(t, []promlint.Problem(nil), problems)
}

var twoDepths = fixed{{Queue: "orders.dlq", Role: retry.QueueRoleDeadLetter, MainQueue: "orders", Messages: 3},
	{Queue: "l.30s", Role: retry.QueueRoleDelay, Messages: 1, Wait: 30 * time.Second}}

// everything is a Metrics that all kinds of series have been made of.
func everything(t *testing.T) (*metrics.Metrics, *prometheus.Registry) {
	t.Helper()
	m, registry := newMetrics(t, metrics.Config{})
	for _, e := range []retry.Event{
		event(retry.EventTopologyDeclared), event(retry.EventCall), event(retry.EventSucceeded),
		event(retry.EventDeadLettered, died("boom")),
	} {
		m.OnEvent(e)
	}
	m.Watch(twoDepths)

	return m, registry
}

func TestConfigReportsEverythingAtOnce(t *testing.T) {
	t.Parallel()

	_, err := metrics.New(metrics.Config{
		Namespace: "my-service",
		ConstLabels: prometheus.Labels{"topic": "x", "9": "x", "__name__": "x", "le": "x", "region": "\xff",
			"fine": "yes"},
		MaxHandlers: -1, MaxQueues: -1, MaxCauses: -1, DepthTimeout: -1,
	})
	require.Error(t, err)
	for _, part := range []string{
		`Config.Registerer: missing: must be a *prometheus.Registry, or prometheus.DefaultRegisterer if the global one is meant, got nil`,
		`Config.Namespace: not a name`, `Config.ConstLabels["topic"]: taken`, `Config.ConstLabels["9"]: not a name`,
		`Config.ConstLabels["__name__"]: not a name`, `Config.ConstLabels["le"]: taken`,
		`Config.ConstLabels["region"]: not a text`,
		`Config.MaxHandlers: out of bounds`, `Config.MaxQueues: out of bounds`,
		`Config.MaxCauses: out of bounds: must be above 0, or 0 for 20, got -1`, `Config.DepthTimeout: out of bounds`,
	} {
		assert.ErrorContains(t, err, part)
	}
	assert.NotContains(t, err.Error(), "fine")
	var field *config.FieldError
	assert.ErrorAs(t, err, &field)

	_, err = metrics.New(metrics.Config{Registerer: (*prometheus.Registry)(nil)})
	assert.ErrorContains(t, err, "Config.Registerer: missing", "a nil registry in the interface")
}

func TestAConflictLeavesNothingRegistered(t *testing.T) {
	t.Parallel()

	for name, taken := range map[string]prometheus.Collector{
		"the same series": prometheus.NewGauge(prometheus.GaugeOpts{Name: "amqpretry_queue_depths_up",
			Help: "1 if the last reading of the queues' depths was complete, else 0."}),
		"another meaning": prometheus.NewGauge(prometheus.GaugeOpts{Name: "amqpretry_queue_messages_ready",
			Help: "Something else."}),
		"with more labels": prometheus.NewCounterVec(prometheus.CounterOpts{Name: "amqpretry_messages_total",
			Help: "x"}, []string{"shop"}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := prometheus.NewPedanticRegistry()
			require.NoError(t, registry.Register(taken))

			_, err := metrics.New(metrics.Config{Registerer: registry})
			require.ErrorContains(t, err, "ConstLabels")

			require.True(t, registry.Unregister(taken))
			families, err := registry.Gather()
			require.NoError(t, err)
			assert.Empty(t, families, "nothing is half registered")
			_, err = metrics.New(metrics.Config{Registerer: registry, Namespace: "other"})
			assert.NoError(t, err)
		})
	}

	registry := prometheus.NewPedanticRegistry()
	first, err := metrics.New(metrics.Config{Registerer: registry})
	require.NoError(t, err)
	_, err = metrics.New(metrics.Config{Registerer: registry})
	require.ErrorAs(t, err, new(prometheus.AlreadyRegisteredError))
	assert.ErrorContains(t, err, "one Metrics serves all retriers of a registry")

	assert.True(t, registry.Unregister(first))
	first.OnEvent(event(retry.EventCall)) // goes nowhere
	_, err = metrics.New(metrics.Config{Registerer: registry})
	assert.NoError(t, err)
}

func TestTwoInOneRegistry(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()

	var all []*metrics.Metrics
	for _, c := range []metrics.Config{
		{ConstLabels: prometheus.Labels{"broker": "eu"}}, {ConstLabels: prometheus.Labels{"broker": "us"}},
		{Namespace: "shop"},
	} {
		c.Registerer = registry
		m, err := metrics.New(c)
		require.NoError(t, err)
		m.OnEvent(event(retry.EventCall))
		m.Watch(twoDepths)
		all = append(all, m)
	}
	all[1].OnEvent(event(retry.EventCall))

	got := values(t, registry, true)
	equal(t, 1., got[`amqpretry_calls_in_flight{broker="eu",handler="ship",topic="orders"}`])
	equal(t, 2., got[`amqpretry_calls_in_flight{broker="us",handler="ship",topic="orders"}`])
	equal(t, 1., got[`shop_calls_in_flight{handler="ship",topic="orders"}`])
	equal(t, 3.,
		got[`amqpretry_queue_messages_ready{broker="us",main_queue="orders",queue="orders.dlq",role="dead-letter"}`])
}

func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	m, registry := newMetrics(t, metrics.Config{MaxHandlers: 50, MaxQueues: 30})

	var flood fixed
	for i := range 10_000 {
		name := fmt.Sprintf("t%05d", i)
		m.OnEvent(event(retry.EventTopologyDeclared, func(e *retry.Event) { e.Topic, e.Queue = name, name }))
		m.OnEvent(event(retry.EventCall, func(e *retry.Event) { e.Topic, e.Handler = name, name }))
		m.OnEvent(event(retry.EventHeld, func(e *retry.Event) { e.Queue, e.Held = name, 1 }))
		flood = append(flood, retry.QueueDepth{Queue: name, Role: retry.QueueRoleRetry, MainQueue: name, Messages: 1})
	}
	m.Watch(flood)

	got := values(t, registry, true)
	count := func(prefix string) (n int) {
		for name := range got {
			if strings.HasPrefix(name, prefix) {
				n++
			}
		}

		return n
	}
	assert.Equal(t, 51, count("amqpretry_calls_in_flight"))
	equal(t, 9_950., got[`amqpretry_calls_in_flight{handler="other",topic="other"}`])
	assert.Equal(t, 51, count("amqpretry_consuming_subscriptions"))
	assert.Equal(t, 31, count("amqpretry_held_deliveries"))
	assert.Equal(t, 31, count("amqpretry_queue_messages_ready"))
	equal(t, 9_970., got[`amqpretry_queue_messages_ready{main_queue="other",queue="other",role="retry"}`])

	before := got
	m.OnEvent(event(retry.EventCall, func(e *retry.Event) { e.Topic, e.Handler = "t00049", "t00049" }))
	equal(t, before[`amqpretry_calls_in_flight{handler="t00049",topic="t00049"}`]+1,
		values(t, registry, true)[`amqpretry_calls_in_flight{handler="t00049",topic="t00049"}`],
		"who is in stays in")
}

func TestInvalidUTF8(t *testing.T) {
	t.Parallel()
	m, registry := newMetrics(t, metrics.Config{})
	for _, bad := range []string{"a\xff", "a\xfe"} { // the same to the reader of a label
		all := func(e *retry.Event) {
			e.Topic, e.Handler, e.Queue, e.Connection, e.Class = bad, bad, bad, bad, retry.Class(bad)
			e.Verdict.Reason = retry.Reason(bad)
		}
		for _, kind := range []retry.EventKind{
			retry.EventCall, retry.EventFailed, retry.EventDeadLettered, retry.EventHeld,
			retry.EventConnected, retry.EventBlocked, retry.EventConsuming,
		} {
			m.OnEvent(event(kind, all))
		}
	}
	m.Watch(fixed{
		{Queue: "a\xff", Role: "\xff", MainQueue: "\xff", Messages: 1},
		{Queue: "a\xfe", Role: "\xff", MainQueue: "\xff", Messages: 2},
	})

	got := values(t, registry, false)
	equal(t, 2., got[`amqpretry_calls_total{handler="a�",outcome="other",topic="a�"}`])
	equal(t, 2., got[`amqpretry_consuming_subscriptions{topic="a�"}`])
	equal(t, 3., got[`amqpretry_queue_messages_ready{main_queue="�",queue="a�",role="other"}`])
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	m, registry := newMetrics(t, metrics.Config{MaxHandlers: 20})

	const each = 2000
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range each {
				about := func(e *retry.Event) { e.Topic = fmt.Sprint((worker + i) % 30) }
				m.OnEvent(event(retry.EventCall, about))
				m.OnEvent(event(retry.EventSucceeded, about))
				if i%500 == 0 {
					stop := m.Watch(fixed{{Queue: "q", Role: retry.QueueRoleRetry, Messages: worker}})
					_, err := registry.Gather()
					assert.NoError(t, err)
					stop()
				}
			}
		})
	}
	wg.Wait()

	succeeded, topics := 0., 0
	for name, value := range values(t, registry, false) {
		assert.NotContains(t, name, "in_flight", "all have ended")
		if strings.HasPrefix(name, "amqpretry_messages_total") {
			succeeded += value
			topics++
		}
	}
	equal(t, 8.*each, succeeded)
	assert.Equal(t, 21, topics)
}

func BenchmarkOnEvent(b *testing.B) {
	attempt := event(retry.EventCall)
	succeeded := event(retry.EventSucceeded)
	failed, retried := event(retry.EventFailed, class(retry.ClassError)), event(retry.EventRetried)
	dead := event(retry.EventDeadLettered, died("dial tcp 10.0.0.7:443: connect: connection refused"))

	cases := []struct {
		name   string
		events []retry.Event
	}{
		{"success", []retry.Event{attempt, succeeded}},
		{"retry", []retry.Event{attempt, failed, retried}},
		{"dead-letter", []retry.Event{attempt, failed, dead}},
	}
	for _, c := range cases {
		m, _ := newMetrics(b, metrics.Config{})
		listeners := map[string]func(retry.Event){"nobody": func(retry.Event) {}, "metrics": m.OnEvent}
		for _, who := range []string{"nobody", "metrics"} {
			onEvent := listeners[who]
			b.Run(c.name+"/"+who, func(b *testing.B) {
				b.ReportAllocs()
				for range b.N {
					for _, e := range c.events {
						onEvent(e)
					}
				}
			})
			b.Run(c.name+"/"+who+"/parallel", func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						for _, e := range c.events {
							onEvent(e)
						}
					}
				})
			})
		}
	}
}

func TestASuccessAllocatesNothing(t *testing.T) {
	m, _ := newMetrics(t, metrics.Config{})
	attempt, succeeded := event(retry.EventCall), event(retry.EventSucceeded, func(e *retry.Event) {
		e.Attempt.FirstFailure = now
	})
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		m.OnEvent(attempt)
		m.OnEvent(succeeded)
	}))
}
