package metrics

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/amqpretry/watermill-retry/retry"
)

// other is the value of a label for what is beyond a limit, or in no list.
const other = "other"

// The names of labels.
const (
	labelTopic      = "topic"
	labelHandler    = "handler"
	labelOutcome    = "outcome"
	labelResult     = "result"
	labelReason     = "reason"
	labelQueue      = "queue"
	labelConnection = "connection"
	labelRole       = "role"
	labelMainQueue  = "main_queue"
	labelCause      = "fingerprint"
)

var ownLabels = []string{
	labelTopic, labelHandler, labelOutcome, labelResult, labelReason, labelQueue, labelConnection, labelRole,
	labelMainQueue, labelCause, "le", "quantile",
}

// The closed lists of values. Reasons that the broker gives (rejected, delivery-limit, maxlen) come
// with the events of a processor only.
var (
	outcomes = []string{
		string(retry.EventSucceeded), string(retry.EventRequeued),
		string(retry.ClassError), string(retry.ClassPanic), string(retry.ClassPermanent), string(retry.ClassDrop),
		string(retry.ClassPostponed), string(retry.ClassUnpublishable), string(retry.ClassCrashed),
		string(retry.ClassUndecodable), string(retry.ClassRejected),
	}
	results = []string{
		string(retry.EventSucceeded), string(retry.EventRetried), string(retry.EventPostponed),
		string(retry.EventDeadLettered), string(retry.EventDropped), string(retry.EventRequeued),
		string(retry.EventAbandoned),
	}
	reasons     = reasonTexts()
	connections = []string{"subscriber", "dead-letter subscriber", "groups", "forwarder", "publisher",
		"delay publisher", "observer", "processor"}
)

func reasonTexts() (texts []string) {
	for _, reason := range retry.Reasons() {
		texts = append(texts, string(reason))
	}

	return texts
}

// Buckets: a call takes from a millisecond to minutes, a confirmation likewise until deliveries are
// held, and a recovery as long as a policy says.
var (
	attemptBuckets  = []float64{1, 2, 3, 4, 5, 6, 8, 11, 16, 26, 51}
	durationBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	recoveryBuckets = []float64{.1, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600,
		7 * 24 * 3600}
)

// series are the vectors behind all labels.
type series struct {
	calls        *prometheus.CounterVec
	durations    *prometheus.HistogramVec
	inFlight     *prometheus.GaugeVec
	messages     *prometheus.CounterVec
	untilSuccess *prometheus.HistogramVec
	recovery     *prometheus.HistogramVec
	deadLetters  *prometheus.CounterVec
	causes       *prometheus.CounterVec
	forward      *prometheus.HistogramVec
	setAside     *prometheus.CounterVec
	withdrawn    *prometheus.CounterVec
	consuming    *prometheus.GaugeVec
	held         *prometheus.GaugeVec
	repairs      *prometheus.CounterVec
	early        *prometheus.CounterVec
	opened       *prometheus.CounterVec
	lost         *prometheus.CounterVec
	blocked      *prometheus.GaugeVec
}

func newSeries(c Config) series {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: c.Namespace, Name: name, Help: help, ConstLabels: c.ConstLabels,
		}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: c.Namespace, Name: name, Help: help, ConstLabels: c.ConstLabels,
		}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: c.Namespace, Name: name, Help: help, ConstLabels: c.ConstLabels, Buckets: buckets,
		}, labels)
	}

	return series{
		calls: counter("calls_total",
			"Calls of handlers that have ended, by how.", labelTopic, labelHandler, labelOutcome),
		durations: histogram("call_duration_seconds",
			"From the call of a handler to the end of it.", durationBuckets, labelTopic, labelHandler,
			labelOutcome),
		inFlight: gauge("calls_in_flight",
			"Calls of handlers that have begun and not ended.", labelTopic, labelHandler),
		messages: counter("messages_total",
			"Deliveries of messages, by what became of them.", labelTopic, labelHandler, labelResult),
		untilSuccess: histogram("attempts_until_success",
			"Number of the attempt that succeeded, 1 for the first.", attemptBuckets, labelTopic, labelHandler),
		recovery: histogram("recovery_duration_seconds",
			"From a message's first failure to its success.", recoveryBuckets, labelTopic, labelHandler),
		deadLetters: counter("dead_letters_total",
			"Messages sent to the dead-letter queue, confirmed by the broker.", labelTopic, labelReason),
		causes: counter("dead_letter_causes_total",
			"Dead letters by the fingerprint of their cause.", labelTopic, labelReason, labelCause),
		forward: histogram("forward_duration_seconds",
			"From a verdict to the broker's confirmation of the copy.", durationBuckets, labelTopic),
		setAside: counter("dead_letters_set_aside_total",
			"Dead letters whose own handler has failed, each time.", labelTopic),
		withdrawn: counter("withdrawn_deliveries_total",
			"Deliveries that the broker has taken back, and whose handler ran on for 10 s or more.", labelTopic),
		consuming: gauge("consuming_subscriptions",
			"Subscriptions that consume.", labelTopic),
		held: gauge("held_deliveries",
			"Failed deliveries whose copies the broker does not confirm.", labelQueue),
		repairs: counter("topology_repairs_total",
			"Retry topologies declared again because a part was missing.", labelQueue),
		early: counter("early_returns_total",
			"Messages that came back before their delay was over, and went to wait again.", labelQueue),
		opened: counter("connections_opened_total",
			"Connections to the broker, the first and those after a loss.", labelConnection),
		lost: counter("connections_lost_total",
			"Connections to the broker that were lost.", labelConnection),
		blocked: gauge("blocked_connections",
			"Connections that the broker blocks, for a memory or disk alarm.", labelConnection),
	}
}

func (s series) all() []prometheus.Collector {
	return []prometheus.Collector{
		s.calls, s.durations, s.inFlight, s.messages, s.untilSuccess, s.recovery, s.deadLetters, s.causes,
		s.setAside, s.withdrawn, s.forward, s.consuming,
		s.held, s.repairs, s.early, s.opened, s.lost, s.blocked,
	}
}

// counters are those of one label with a closed list of values. All begin at 0: what does not exist
// before its first event has no increase.
type counters struct {
	by    map[string]prometheus.Counter
	other func() prometheus.Counter
}

func newCounters(vec *prometheus.CounterVec, values []string, labels ...string) counters {
	with := func(value string) prometheus.Counter {
		return vec.WithLabelValues(append(labels[:len(labels):len(labels)], value)...)
	}

	by := make(map[string]prometheus.Counter, len(values))
	for _, v := range values {
		by[v] = with(v)
	}

	return counters{by: by, other: func() prometheus.Counter { return with(other) }}
}

func (c counters) inc(value string) {
	if counter, ok := c.by[value]; ok {
		counter.Inc()
		return
	}

	c.other().Inc()
}

// handled are the series of a topic and a handler.
type handled struct {
	calls        counters
	messages     counters
	inFlight     prometheus.Gauge
	untilSuccess prometheus.Observer
	recovery     prometheus.Observer
	succeeded    prometheus.Observer
	durations    prometheus.ObserverVec // of other outcomes, which are made when they happen: each is many series
}

type handlerKey struct{ topic, handler string }

func (s series) handled(key handlerKey) *handled {
	topic, handler := text(key.topic), text(key.handler)
	durations := s.durations.MustCurryWith(prometheus.Labels{labelTopic: topic, labelHandler: handler})

	return &handled{
		calls:        newCounters(s.calls, outcomes, topic, handler),
		messages:     newCounters(s.messages, results, topic, handler),
		inFlight:     s.inFlight.WithLabelValues(topic, handler),
		untilSuccess: s.untilSuccess.WithLabelValues(topic, handler),
		recovery:     s.recovery.WithLabelValues(topic, handler),
		succeeded:    durations.WithLabelValues(string(retry.EventSucceeded)),
		durations:    durations,
	}
}

// ended counts the end of a call that had begun.
func (h *handled) ended(outcome string, took time.Duration) {
	h.inFlight.Dec()

	switch _, known := h.calls.by[outcome]; {
	case outcome == string(retry.EventSucceeded):
		h.succeeded.Observe(seconds(took))
	case known:
		h.durations.WithLabelValues(outcome).Observe(seconds(took))
	default:
		h.durations.WithLabelValues(other).Observe(seconds(took))
	}
}

// topical are the series of a topic.
type topical struct {
	deadLetters counters
	causes      *causes
	forward     prometheus.Observer
	setAside    prometheus.Counter
	withdrawn   prometheus.Counter
	consuming   prometheus.Gauge
}

func (s series) topical(topic string, maxCauses int) *topical {
	topic = text(topic)

	return &topical{
		deadLetters: newCounters(s.deadLetters, reasons, topic),
		causes:      &causes{vec: s.causes, topic: topic, limit: maxCauses, seen: map[string]time.Time{}},
		forward:     s.forward.WithLabelValues(topic),
		setAside:    s.setAside.WithLabelValues(topic),
		withdrawn:   s.withdrawn.WithLabelValues(topic),
		consuming:   s.consuming.WithLabelValues(topic),
	}
}

// queued are the series of a main queue.
type queued struct {
	held    prometheus.Gauge
	repairs prometheus.Counter
	early   prometheus.Counter
}

func (s series) queued(queue string) *queued {
	queue = text(queue)

	return &queued{held: s.held.WithLabelValues(queue), repairs: s.repairs.WithLabelValues(queue),
		early: s.early.WithLabelValues(queue)}
}

// listed is a value as a label with a closed list may have it.
func listed(value string, list []string) string {
	if slices.Contains(list, value) {
		return value
	}

	return other
}

// text is a name as a label may have it: a single one that is not valid UTF-8 would fail the whole
// scrape.
func text(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

// seconds are never negative: clocks differ from host to host.
func seconds(d time.Duration) float64 { return max(d, 0).Seconds() }
