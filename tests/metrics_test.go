package tests

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/middleware/metrics"
	"github.com/amqpretry/watermill-retry/retry"
)

// measured is a service's Metrics with the registry that they are in.
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

// becomes waits for a value.
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
