//go:build cluster

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/fate"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// delays take one and two waits in the ladder.
var delays = []time.Duration{500 * time.Millisecond, 3200 * time.Millisecond}

// ladder is that of the exact delays.
var ladder = topology.Ladder{Config: config.RetryLadder()}

const (
	prefetch    = 10
	concurrency = 5
	perSecond   = 20 // of each of three publishers
)

// service is what a user runs: a router with the retrier, which has a handler for each queue.
type service struct {
	name    string
	retrier *adapter.Retrier
	router  *message.Router
	logs    *logs
}

// startService starts one that begins at the first of these URIs and moves on to the others.
func startService(t *testing.T, name string, uris []string, reconnect *amqp.ReconnectConfig, queues []string,
	policy config.Policy, l *ledger) *service {
	t.Helper()
	s := &service{name: name, logs: newLogs(t, name)}

	conf := amqp.NewDurableQueueConfig(uris[0])
	conf.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum", "x-queue-leader-locator": "balanced"}
	conf.Consume.Qos.PrefetchCount = prefetch
	conf.Connection.Reconnect = reconnect
	var err error
	s.retrier, err = adapter.New(conf, amqpretry.Options{
		Addresses:    addresses(t, uris[1:]),
		Policies:     config.Policies{Default: policy},
		Concurrency:  concurrency,
		CloseTimeout: 15 * time.Second,
		Logger:       s.logs,
		OnEvent: func(e retry.Event) {
			if e.Kind == retry.EventDeadLettered && e.Message != nil {
				l.isDead(e.Message.UUID)
			}
		},
	})
	require.NoError(t, err)
	s.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: 20 * time.Second}, s.logs)
	require.NoError(t, err)
	s.router.AddMiddleware(s.retrier.Middleware)
	sub, err := s.retrier.NewSubscriber()
	require.NoError(t, err)
	for _, queue := range queues {
		s.router.AddConsumerHandler(name+" "+queue, queue, sub, func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			l.isCalled(name, queue, msg.UUID, attempt.Number)

			return fate.Handle(msg.UUID, attempt)
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- s.router.Run(context.Background()) }()
	select {
	case <-s.router.Running():
	case err := <-ended:
		t.Fatalf("service %s does not run: %v", name, err)
	}
	t.Cleanup(func() { s.close(t) })

	return s
}

func (s *service) close(t *testing.T) {
	t.Helper()
	if err := errors.Join(s.router.Close(), s.retrier.Close()); err != nil {
		t.Errorf("service %s: %v", s.name, err)
	}
}

func addresses(t *testing.T, uris []string) []string {
	t.Helper()
	hosts := make([]string, len(uris))
	for i := range uris {
		u, err := url.Parse(uris[i])
		require.NoError(t, err)
		hosts[i] = u.Host
	}

	return hosts
}

// publisher publishes with confirms, and again what was not confirmed: over the same connection
// when it is refused, else over one to the next node.
type publisher struct {
	name   string
	uris   []string
	queues []string
	ledger *ledger
	random *rand.Rand

	pending map[string]string // id → queue
	n       int
}

func (p *publisher) run(stop <-chan struct{}, quit context.Context) {
	p.pending = map[string]string{}
	for node := 0; quit.Err() == nil; node++ {
		if p.session(p.uris[node%len(p.uris)], stop, quit) {
			return
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-quit.Done():
		}
	}
}

// next makes a message.
func (p *publisher) next() (id, queue string) {
	f := fate.Never
	switch n := p.random.IntN(100); {
	case n < 50:
		f = fate.Succeeds
	case n < 70:
		f = fate.Once
	case n < 85:
		f = fate.Twice
	}
	p.n++

	return fmt.Sprintf("%s-%s-%d", f, p.name, p.n), p.queues[p.random.IntN(len(p.queues))]
}

type sending struct {
	id   string
	at   time.Time
	done *amqp091.DeferredConfirmation
}

// session is one connection. It reports whether all is done.
func (p *publisher) session(uri string, stop <-chan struct{}, quit context.Context) bool {
	const patience = 5 * time.Second
	conn, err := amqp091.DialConfig(uri, amqp091.Config{Heartbeat: 5 * time.Second,
		Dial: amqp091.DefaultDial(patience)})
	if err != nil {
		return false
	}
	defer conn.CloseDeadline(time.Now().Add(patience)) //nolint:errcheck // whatever it says, the connection is given up
	ch, err := conn.Channel()
	if err != nil {
		return false
	}
	if err := ch.Confirm(false); err != nil {
		return false
	}
	returns := ch.NotifyReturn(make(chan amqp091.Return, 10_000))
	closed := conn.NotifyClose(make(chan *amqp091.Error, 1))

	var open []sending
	send := func(id, queue string) bool {
		p.ledger.publishes(id)
		p.pending[id] = queue
		done, err := ch.PublishWithDeferredConfirm("", queue, true, false, rabbit.Message(id, id))
		open = append(open, sending{id, time.Now(), done})

		return err == nil
	}
	for id, queue := range p.pending {
		if !send(id, queue) {
			return false
		}
	}

	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	for {
		select {
		case <-quit.Done():
			return true
		case <-closed: //nolint:errcheck // it closes; how does not matter here
			return false
		case <-tick.C:
		}

		returned := map[string]bool{}
		for len(returns) > 0 {
			returned[rabbit.UUID(amqp091.Delivery{Headers: (<-returns).Headers})] = true
		}
		still := open[:0]
		for _, s := range open {
			select {
			case <-s.done.Done():
				if !s.done.Acked() || returned[s.id] {
					return false
				}
				p.ledger.isAccepted(s.id)
				delete(p.pending, s.id)
			default:
				still = append(still, s)
			}
		}
		open = still
		if len(open) > 0 && time.Since(open[0].at) > 2*patience {
			return false
		}

		select {
		case <-stop:
			if len(p.pending) == 0 {
				return true
			}
		default:
			if len(open) < 200 {
				if id, queue := p.next(); !send(id, queue) {
					return false
				}
			}
		}
	}
}

// startPublishers starts one at each node. stop stops them, and waits until the brokers have
// confirmed everything.
func startPublishers(t *testing.T, uris, queues []string, seed uint64, l *ledger) (stop func()) {
	t.Helper()
	quit, cancel := context.WithCancel(context.Background())
	halt := make(chan struct{})
	var running sync.WaitGroup
	for i := range uris {
		p := &publisher{
			name: fmt.Sprint(i), uris: append(uris[i:len(uris):len(uris)], uris[:i]...), queues: queues, ledger: l,
			random: rand.New(rand.NewPCG(seed, uint64(i))),
		}
		running.Go(func() { p.run(halt, quit) })
	}
	all := make(chan struct{})
	go func() {
		running.Wait()
		close(all)
	}()
	t.Cleanup(func() {
		cancel()
		<-all
	})

	return func() {
		t.Helper()
		close(halt)
		select {
		case <-all:
		case <-time.After(2 * time.Minute):
			t.Error("not everything that was published is confirmed")
			cancel()
			<-all
		}
	}
}

// letters takes everything out of a dead-letter queue.
func letters(t *testing.T, uri, queue string, l *ledger) {
	t.Helper()
	for _, d := range rabbit.New(t, uri).Drain(queue) {
		reason := rabbit.Text(d, header.Reason)
		l.isFound(rabbit.UUID(d), reason)
		if reason != string(retry.ReasonExhausted) { // which is wrong
			t.Logf("in %s: %v", queue, d.Headers)
		}
	}
}

// logs keeps what is logged, shows it when the test fails, and knows where each connection is.
type logs struct {
	fields watermill.LogFields
	kept   *keptLogs
}

type keptLogs struct {
	mu    sync.Mutex
	lines []string
	at    map[string]string // connection → address
}

func newLogs(t *testing.T, name string) *logs {
	l := &logs{kept: &keptLogs{at: map[string]string{}}}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		l.kept.mu.Lock()
		defer l.kept.mu.Unlock()
		t.Logf("service %s:\n%s", name, strings.Join(l.kept.lines[max(0, len(l.kept.lines)-150):], "\n"))
	})

	return l
}

// address is where a connection was opened last.
func (l *logs) address(connection string) string {
	l.kept.mu.Lock()
	defer l.kept.mu.Unlock()

	return l.kept.at[connection]
}

func (l *logs) add(level, text string, err error, fields watermill.LogFields) {
	all := l.fields.Add(fields)
	l.kept.mu.Lock()
	defer l.kept.mu.Unlock()
	if at, ok := all["address"].(string); ok {
		l.kept.at[fmt.Sprint(all["connection"])] = at
	}
	if level == "debug" || strings.HasPrefix(text, "Message failed") {
		return
	}
	l.kept.lines = append(l.kept.lines, fmt.Sprintf("%s %-5s %s %v %v", time.Now().Format("15:04:05.000"), level, text,
		err, all))
}

func (l *logs) Error(text string, err error, f watermill.LogFields) { l.add("error", text, err, f) }
func (l *logs) Info(text string, f watermill.LogFields)             { l.add("info", text, nil, f) }
func (l *logs) Debug(text string, f watermill.LogFields)            { l.add("debug", text, nil, f) }
func (l *logs) Trace(string, watermill.LogFields)                   {}
func (l *logs) With(f watermill.LogFields) watermill.LoggerAdapter {
	return &logs{l.fields.Add(f), l.kept}
}
