// Shop is a service with its series at /metrics. It fails 1 % of its messages once, and every
// 500th for ever. At its end it prints the series. Look at the lines with m in run. To watch it for
// longer:
//
//	scripts/broker run --private go run ./middleware/metrics/shop -for 10m
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/middleware/metrics"
	"github.com/amqpretry/watermill-retry/retry"
)

// load is how many messages there are.
type load struct {
	Listen    string
	PerSecond int
	For       time.Duration
}

func main() {
	var l load
	flag.StringVar(&l.Listen, "listen", "127.0.0.1:2112", "address of /metrics")
	flag.IntVar(&l.PerSecond, "rate", 100, "messages per second")
	flag.DurationVar(&l.For, "for", 10*time.Second, "for how long")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI"), l); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string, l load) error {
	topic := "metrics-" + watermill.NewShortUUID()
	registry := prometheus.NewRegistry()
	m, err := metrics.New(metrics.Config{Registerer: registry})
	if err != nil {
		return err
	}

	messages := int(l.For.Seconds() * float64(l.PerSecond))
	var open sync.WaitGroup
	open.Add(messages)

	conf := amqp.NewDurableQueueConfig(uri)
	conf.Consume.Qos.PrefetchCount = 200
	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Logger: watermill.NopLogger{}, // the example prints what happens
		Policies: config.Policies{Default: config.Policy{Delays: []time.Duration{200 * time.Millisecond,
			time.Second}}},
		Concurrency: 10,
		OnEvent: func(e retry.Event) { // OnEvent: m.OnEvent, where nothing else wants to know
			m.OnEvent(e)
			if e.Kind == retry.EventSucceeded || e.Kind == retry.EventDeadLettered {
				open.Done()
			}
		},
	})
	if err != nil {
		return err
	}
	defer retrier.Close()
	defer demo.Tidy(uri, retrier, topic) // no service deletes its queues
	defer m.Watch(retrier)()             // the depths of its queues, until it is closed

	listener, err := net.Listen("tcp", l.Listen)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux}
	defer server.Close()
	go func() { _ = server.Serve(listener) }() // until Close

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddMiddleware(retrier.Middleware)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	router.AddConsumerHandler("ship", topic, subscriber, ship)
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-stopped:
		return err
	}

	if err := publish(ctx, retrier, topic, messages, l.PerSecond); err != nil {
		return err
	}
	if err := wait(ctx, &open); err != nil {
		return err
	}

	if err := scrape("http://" + listener.Addr().String() + "/metrics"); err != nil {
		return err
	}
	if err := router.Close(); err != nil {
		return err
	}

	return <-stopped
}

// wait waits until all messages have come to their end, or ctx ends.
func wait(ctx context.Context, open *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		open.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ship takes some milliseconds. It fails every 100th order once, and every 500th for ever.
func ship(msg *message.Message) error {
	time.Sleep(time.Millisecond * time.Duration(1+rand.ExpFloat64()*5))

	order, err := strconv.Atoi(string(msg.Payload))
	if err != nil {
		return retry.Permanent(err)
	}
	attempt, _ := retry.AttemptFromContext(msg.Context())
	if order%500 == 0 || order%100 == 0 && attempt.Number == 1 {
		return errors.New("the warehouse does not answer")
	}

	return nil
}

func publish(ctx context.Context, retrier *amqpv2.Retrier, topic string, messages, perSecond int) error {
	publisher, err := retrier.NewPublisher()
	if err != nil {
		return err
	}

	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for order := range messages {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		msg := message.NewMessage(watermill.NewUUID(), []byte(strconv.Itoa(order+1)))
		if err := publisher.Publish(topic, msg); err != nil {
			return err
		}
	}

	return nil
}

// scrape prints what is at /metrics, apart from comments, buckets and what is still 0.
func scrape(url string) error {
	response, err := http.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()

	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if line := lines.Text(); !strings.HasPrefix(line, "#") && !strings.Contains(line, "_bucket{") &&
			!strings.HasSuffix(line, " 0") {
			fmt.Println(line)
		}
	}

	return lines.Err()
}
