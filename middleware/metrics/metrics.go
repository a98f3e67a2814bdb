package metrics

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/amqpretry/watermill-retry/retry"
)

// Metrics makes series from events. It is safe for concurrent use, and is a prometheus.Collector:
// hand it to the registry's Unregister to take all of its series away.
type Metrics struct {
	series series

	handlers *capped[handlerKey, *handled]
	topics   *capped[string, *topical]
	queues   *capped[string, *queued]

	opened, lost counters

	depths *depths
}

var _ prometheus.Collector = (*Metrics)(nil)

// New checks the config, everything at once, and registers the series: all of them or, with an
// error, none.
func New(c Config) (*Metrics, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("invalid config of the metrics:\n%w", err)
	}
	c.setDefaults()

	s := newSeries(c)
	m := &Metrics{
		series: s,
		topics: newCapped(c.MaxHandlers, other, func(topic string) *topical { return s.topical(topic, c.MaxCauses) }),
		queues: newCapped(c.MaxQueues, other, s.queued),
		opened: newCounters(s.opened, connections),
		lost:   newCounters(s.lost, connections),
		depths: newDepths(c),
	}
	m.handlers = newCapped(c.MaxHandlers, handlerKey{other, other}, func(key handlerKey) *handled {
		m.topics.of(key.topic) // begins at 0 as well, where nobody has told of the topology
		return s.handled(key)
	})
	for _, connection := range connections {
		s.blocked.WithLabelValues(connection)
	}

	if err := c.Registerer.Register(m); err != nil {
		return nil, fmt.Errorf("cannot register the series %s_…: %w: one Metrics serves all retriers of a registry; "+
			"several in one registry need ConstLabels (of the same names, with other values) or a Namespace each",
			c.Namespace, err)
	}

	return m, nil
}

// OnEvent counts an event. It is what amqpretry.Options.OnEvent is to be, or to call.
func (m *Metrics) OnEvent(e retry.Event) {
	switch e.Kind {
	case retry.EventCall:
		m.handled(&e).inFlight.Inc()
	case retry.EventSucceeded:
		m.succeeded(&e)
	case retry.EventRequeued:
		h := m.handled(&e)
		h.calls.inc(string(e.Kind))
		h.ended(string(e.Kind), e.Took)
		h.messages.inc(string(e.Kind))
	case retry.EventFailed:
		h := m.handled(&e)
		h.calls.inc(string(e.Class))
		h.ended(string(e.Class), e.Took)
	case retry.EventUnhandled:
		if e.Class != retry.ClassExpired && e.Class != retry.ClassPostponed { // they do not count as failures
			m.handled(&e).calls.inc(string(e.Class))
		}
	case retry.EventRetried, retry.EventPostponed:
		m.handled(&e).messages.inc(string(e.Kind))
		m.topics.of(e.Topic).forward.Observe(seconds(e.Took))
	case retry.EventDeadLettered:
		m.handled(&e).messages.inc(string(e.Kind))
		t := m.topics.of(e.Topic)
		t.forward.Observe(seconds(e.Took))
		t.deadLetters.inc(string(e.Verdict.Reason))
		t.causes.inc(&e)
	case retry.EventDropped, retry.EventAbandoned:
		m.handled(&e).messages.inc(string(e.Kind))
	case retry.EventHeld:
		m.queues.of(e.Queue).held.Set(float64(e.Held))
	case retry.EventReleased:
		m.queues.of(e.Queue).held.Set(0)
	case retry.EventTopologyDeclared:
		m.topics.of(e.Topic) // begins at 0
		if !e.DeadLetters {
			m.queues.of(e.Queue)
		}
	case retry.EventTopologyRepaired:
		m.queues.of(e.Queue).repairs.Inc()
	case retry.EventReturnedEarly:
		m.queues.of(e.Queue).early.Inc()
	case retry.EventConsuming:
		t := m.topics.of(e.Topic)
		if !e.DeadLetters {
			t.consuming.Inc()
			m.queues.of(e.Queue)
		}
	case retry.EventStoppedConsuming:
		if !e.DeadLetters {
			m.topics.of(e.Topic).consuming.Dec()
		}
	case retry.EventSetAside:
		m.topics.of(e.Topic).setAside.Inc()
	case retry.EventWithdrawn:
		m.topics.of(e.Topic).withdrawn.Inc()
	case retry.EventConnected:
		m.opened.inc(e.Connection)
	case retry.EventDisconnected:
		m.lost.inc(e.Connection)
	case retry.EventBlocked:
		m.series.blocked.WithLabelValues(listed(e.Connection, connections)).Inc()
	case retry.EventUnblocked:
		m.series.blocked.WithLabelValues(listed(e.Connection, connections)).Dec()
	}
}

func (m *Metrics) succeeded(e *retry.Event) {
	h := m.handled(e)
	h.calls.inc(string(e.Kind))
	h.ended(string(e.Kind), e.Took)
	h.messages.inc(string(e.Kind))
	h.untilSuccess.Observe(float64(max(e.Attempt.Number, 1)))
	if first := e.Attempt.FirstFailure; !first.IsZero() {
		h.recovery.Observe(seconds(e.At.Sub(first)))
	}
}

func (m *Metrics) handled(e *retry.Event) *handled {
	return m.handlers.of(handlerKey{e.Topic, e.Handler})
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.series.all() {
		c.Describe(ch)
	}
	m.depths.describe(ch)
}

// Collect implements prometheus.Collector. It takes as long as the retriers take to read the depths
// of their queues, and Config.DepthTimeout at the longest.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.series.all() {
		c.Collect(ch)
	}
	m.depths.collect(ch)
}
