package metrics_test

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/middleware/metrics"
	"github.com/amqpretry/watermill-retry/retry"
)

func Example() {
	registry := prometheus.NewRegistry() // which promhttp.HandlerFor serves

	m, err := metrics.New(metrics.Config{Registerer: registry})
	if err != nil {
		fmt.Println(err)
		return
	}
	conf := amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/")
	retrier, err := amqpv2.New(conf, amqpretry.Options{OnEvent: m.OnEvent})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = retrier.Close() }()
	defer m.Watch(retrier)()

	fmt.Println("wired")
	// Output: wired
}

func ExampleMetrics_OnEvent() {
	registry := prometheus.NewRegistry()
	m, err := metrics.New(metrics.Config{Registerer: registry})
	if err != nil {
		fmt.Println(err)
		return
	}

	onEvent := func(e retry.Event) { // for amqpretry.Options.OnEvent, where alarms are of one's own
		m.OnEvent(e)
		if e.Kind == retry.EventDeadLettered {
			fmt.Println("a dead letter of", e.Topic, "because it is", e.Verdict.Reason)
		}
	}

	onEvent(retry.Event{Kind: retry.EventDeadLettered, Topic: "orders",
		Verdict: retry.Verdict{Reason: retry.ReasonExhausted}})
	n, err := testutil.GatherAndCount(registry, "amqpretry_dead_letters_total")
	fmt.Println(n, "series of dead letters,", err)
	// Output:
	// a dead letter of orders because it is exhausted
	// 12 series of dead letters, <nil>
}

func ExampleNew_invalid() {
	_, err := metrics.New(metrics.Config{Namespace: "my-shop", ConstLabels: prometheus.Labels{"queue": "eu"}})
	fmt.Println(err)
	// Output:
	// invalid config of the metrics:
	// Config.Registerer: missing: must be a *prometheus.Registry, or prometheus.DefaultRegisterer if the global one is meant, got nil
	// Config.Namespace: not a name: must be letters, digits and _, and no digit first, got "my-shop"
	// Config.ConstLabels["queue"]: taken: must be another name than ["topic" "handler" "outcome" "result" "reason" "queue" "connection" "role" "main_queue" "fingerprint" "le" "quantile"], which are the labels of the series, got "queue"
}
