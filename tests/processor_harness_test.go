package tests

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/management"
	"github.com/amqpretry/watermill-retry/amqpretry/processor"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/fate"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

// unlimited is a delivery limit that nothing reaches.
const unlimitedDeliveries = int64(2147483647)

// foreignQueue is a main queue of a service in another language: it dead-letters to its failed
// queue.
type foreignQueue struct{ Main, Failed string }

// declareForeign declares a quorum main queue and its failed queue, with further arguments of the
// main queue. They are removed when the test ends, with all that the default names call theirs.
func declareForeign(t *testing.T, broker *rabbit.Client, main string, arguments ...amqp091.Table) foreignQueue {
	t.Helper()

	return declareForeignTo(t, broker, main, main+".failed", arguments...)
}

// declareForeignTo declares a main queue with a failed queue that may be that of others as well.
func declareForeignTo(
	t *testing.T, broker *rabbit.Client, main, failed string, arguments ...amqp091.Table,
) foreignQueue {
	t.Helper()
	q := foreignQueue{Main: main, Failed: failed}
	own := amqp091.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": q.Failed,
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	}
	for _, more := range arguments {
		for key, value := range more {
			if own[key] = value; value == nil {
				delete(own, key)
			}
		}
	}
	broker.Declare(q.Failed, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": unlimitedDeliveries})
	broker.Declare(q.Main, own)

	return q
}

// foreigner consumes from main queues as a service in another language does: it acknowledges or
// rejects, as the fate of a message says, and knows nothing of retries.
type foreigner struct {
	mu   sync.Mutex
	seen map[string][]sighting // by message id
}

// sighting is a delivery.
type sighting struct {
	At       time.Time
	Count    string // the header; empty without one
	Headers  amqp091.Table
	Delivery amqp091.Delivery
}

func consumeForeign(t *testing.T, broker *rabbit.Client, queues ...string) *foreigner {
	t.Helper()
	f := &foreigner{seen: map[string][]sighting{}}
	connection := broker.Dial()
	for _, queue := range queues {
		channel := must(connection.Channel())(t)
		require.NoError(t, channel.Qos(20, 0, false))
		deliveries := must(channel.Consume(queue, "", false, false, false, false, nil))(t)
		go f.consume(deliveries)
	}

	return f
}

func (f *foreigner) consume(deliveries <-chan amqp091.Delivery) {
	for d := range deliveries {
		count := rabbit.Text(d, header.Count)
		failures, _ := strconv.Atoi(count)
		f.mu.Lock()
		f.seen[d.MessageId] = append(f.seen[d.MessageId], sighting{time.Now(), count, d.Headers, d})
		f.mu.Unlock()
		if fate.Of(d.MessageId).Fails(max(failures, 0) + 1) {
			_ = d.Nack(false, false)
		} else {
			_ = d.Ack(false)
		}
	}
}

// of are the deliveries of a message.
func (f *foreigner) of(id string) []sighting {
	f.mu.Lock()
	defer f.mu.Unlock()

	return append([]sighting(nil), f.seen[id]...)
}

// counts are the count headers with which a message came.
func (f *foreigner) counts(id string) []string {
	var counts []string
	for _, s := range f.of(id) {
		counts = append(counts, s.Count)
	}

	return counts
}

// handled tells how often a message was acknowledged.
func (f *foreigner) handled(id string) int {
	n := 0
	for _, s := range f.of(id) {
		failures, _ := strconv.Atoi(s.Count)
		if !fate.Of(id).Fails(max(failures, 0) + 1) {
			n++
		}
	}

	return n
}

// foreign is a message of a publisher in another language.
func foreign(id string) amqp091.Publishing {
	return amqp091.Publishing{
		DeliveryMode: amqp091.Persistent, MessageId: id, ContentType: "application/json", Body: []byte(`{"id":"` + id +
			`"}`), Headers: amqp091.Table{"tenant": "acme"},
	}
}

func foreigns(ids ...string) []amqp091.Publishing {
	messages := make([]amqp091.Publishing, len(ids))
	for i, id := range ids {
		messages[i] = foreign(id)
	}

	return messages
}

// processed is a processor that runs.
type processed struct {
	*processor.Processor
	Logs *logs

	t      *testing.T
	cancel context.CancelFunc
	ended  chan error

	events records[retry.Event]
}

// newProcessor makes a processor that does not run.
func newProcessor(t *testing.T, conf processor.Config, options processor.Options) *processed {
	t.Helper()
	p := &processed{t: t, Logs: newLogs(t), ended: make(chan error, 1)}
	options.Logger = p.Logs
	then := options.OnEvent
	options.OnEvent = func(e retry.Event) {
		p.events.put(e)
		if then != nil {
			then(e)
		}
	}
	if options.HoldWarning == 0 {
		options.HoldWarning = 300 * time.Millisecond
	}
	p.Processor = must(processor.New(conf, options))(t)

	return p
}

// processQueue runs a processor for one queue of a service in another language.
func processQueue(t *testing.T, policies config.Policies) (*rabbit.Client, foreignQueue, *processed, *foreigner) {
	t.Helper()
	broker := newRabbit(t, brokertest.URI(t))
	q := declareForeign(t, broker, uniqueName("proc"))
	options := processor.Options{Policies: policies}
	removeTopology(t, broker, q.Main, options)

	return broker, q, process(t, of(t, q), options), consumeForeign(t, broker, q.Main)
}

// says compares the reason and the number of attempts of a dead letter.
func says(t *testing.T, letter amqp091.Delivery, reason, attempts string) {
	t.Helper()
	hasHeaders(t, letter, headers{header.Reason: reason, header.Attempts: attempts})
}

// process runs a processor until the test ends, and waits until it is ready.
func process(t *testing.T, conf processor.Config, options processor.Options) *processed {
	t.Helper()
	p := newProcessor(t, conf, options)
	p.run()
	p.ready()

	return p
}

func (p *processed) run() {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() { p.ended <- p.Run(ctx) }()
	p.t.Cleanup(func() {
		if p.t.Failed() {
			p.t.Logf("readiness: %v", p.Ready())
		}
		require.NoError(p.t, p.Close())
	})
}

func (p *processed) ready() {
	p.t.Helper()
	await.Until(p.t, func() bool { return p.Ready() == nil }, "the processor is ready")
}

// stop ends it as a signal does.
func (p *processed) stop() {
	p.t.Helper()
	p.cancel()
	require.NoError(p.t, await.Value(p.t, p.ended, "the end of the processor"))
}

func (p *processed) Events(kind retry.EventKind) []retry.Event {
	return p.events.where(func(e retry.Event) bool { return e.Kind == kind })
}

// of is the config of a processor of some queues on the shared broker.
func of(t *testing.T, queues ...foreignQueue) processor.Config {
	t.Helper()
	conf := processor.Config{URI: brokertest.URI(t)}
	for _, q := range queues {
		conf.Queues = append(conf.Queues, processor.Queue{Name: q.Failed, MainQueue: q.Main})
	}

	return conf
}

// removeTopology deletes what a processor declares for a main queue, when the test ends.
func removeTopology(t *testing.T, broker *rabbit.Client, main string, options processor.Options) {
	t.Helper()
	plan := must(topology.New(main, options.Policies.For(main), options.Names))(t)
	t.Cleanup(func() { broker.RemovePlan(plan) })
}

// listing is a management API that lists queues, and nothing else.
type listing struct {
	mu    sync.Mutex
	names []string
	down  bool
}

func newListing(t *testing.T, names ...string) (*listing, management.API) {
	t.Helper()
	l := &listing{names: names}
	server := httptest.NewServer(l)
	t.Cleanup(server.Close)

	return l, management.API{URL: server.URL, VHost: "/"}
}

func (l *listing) set(names ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names = names
}

func (l *listing) fail(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
}

func (l *listing) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if l.down {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"error":"down","reason":"starting"}`))

		return
	}
	type queue struct {
		Name  string `json:"name"`
		VHost string `json:"vhost"`
		Type  string `json:"type"`
	}
	items := []queue{}
	for _, name := range l.names {
		items = append(items, queue{name, "/", "quorum"})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"items": items, "page_count": 1})
}
