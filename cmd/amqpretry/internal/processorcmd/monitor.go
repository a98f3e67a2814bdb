package processorcmd

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/amqpretry/watermill-retry/amqpretry/health"
	"github.com/amqpretry/watermill-retry/amqpretry/processor"
	"github.com/amqpretry/watermill-retry/middleware/metrics"
	"github.com/amqpretry/watermill-retry/retry"
)

const (
	// mostSeries is more queues than a broker has: what an operator runs is to be seen.
	mostSeries = 100_000
	// depthTimeout is how long a scrape waits for the depths of many queues; Prometheus itself
	// waits for 10s.
	depthTimeout = 8 * time.Second
	headTimeout  = 10 * time.Second
)

// monitor serves probes and metrics. Without an address it does nothing.
type monitor struct {
	listener net.Listener
	registry *prometheus.Registry
	metrics  *metrics.Metrics
	server   *http.Server
	ended    chan error
	log      *slog.Logger
}

func newMonitor(address string, log *slog.Logger) (*monitor, error) {
	if address == "" {
		return &monitor{}, nil
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m, err := metrics.New(metrics.Config{
		Registerer: registry, MaxHandlers: mostSeries, MaxQueues: mostSeries, DepthTimeout: depthTimeout,
		Logger: watermill.NewSlogLogger(log),
	})
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}

	return &monitor{listener: listener, registry: registry, metrics: m, ended: make(chan error, 1), log: log}, nil
}

func (m *monitor) onEvent(e retry.Event) {
	if m.metrics != nil {
		m.metrics.OnEvent(e)
	}
}

// serve begins to answer.
func (m *monitor) serve(processor *processor.Processor) {
	if m.listener == nil {
		return
	}
	m.metrics.Watch(processor)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.Handle("/", health.Handler(processor))
	m.server = &http.Server{Handler: mux, ReadHeaderTimeout: headTimeout}
	m.log.Info("Serving probes and metrics", "address", m.listener.Addr().String())
	go func() { m.ended <- m.server.Serve(m.listener) }()
}

// failed is why the server has ended by itself; nil if it has not.
func (m *monitor) failed() error {
	select {
	case err := <-m.ended:
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return err
	default:
		return nil
	}
}

func (m *monitor) close() {
	if m.server != nil {
		_ = m.server.Close()
	} else if m.listener != nil {
		_ = m.listener.Close()
	}
}
