package tests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/fate"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// uniqueName names an object as no other test does. It is short: the broker cuts its error texts at
// 255 bytes.
func uniqueName(prefix string) string {
	return prefix + "-" + watermill.NewShortUUID()
}

func retries(delays ...time.Duration) config.Policies {
	return config.Policies{Default: config.Policy{Delays: delays}}
}

func ms(n ...int) []time.Duration {
	delays := make([]time.Duration, len(n))
	for i := range n {
		delays[i] = time.Duration(n[i]) * time.Millisecond
	}

	return delays
}

// must gives the value of a call that may not fail: must(retrier.NewSubscriber())(t).
func must[V any](value V, err error) func(t testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		require.NoError(t, err)

		return value
	}
}

func errorAs[E error](t testing.TB, err error, what ...any) (found E) {
	t.Helper()
	require.ErrorAs(t, err, &found, what...)

	return found
}

// each runs a test for each case, all at the same time; eachOf for each name, eachQueueType for
// both types of a main queue.
func each[C any](t *testing.T, cases map[string]C, test func(t *testing.T, name string, c C)) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, name, c)
		})
	}
}

func eachOf(t *testing.T, names []string, test func(t *testing.T, name string)) {
	t.Helper()
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, name)
		})
	}
}

func eachQueueType(t *testing.T, test func(t *testing.T, queueType string)) {
	t.Helper()
	eachOf(t, []string{"classic", "quorum"}, test)
}

// bound declares an exchange until the test ends, and binds a queue to it.
func bound(t *testing.T, broker *rabbit.Client, exchange, kind, queue, key string) {
	t.Helper()
	broker.Do(func(ch *amqp091.Channel) error {
		return errors.Join(ch.ExchangeDeclare(exchange, kind, true, false, false, false, nil),
			ch.QueueBind(queue, key, exchange, false, nil))
	})
	t.Cleanup(func() { broker.Remove(exchange) })
}

// records keeps values in the order in which they come, from several goroutines.
type records[V any] struct {
	mu   sync.Mutex
	kept []V
}

func (r *records[V]) put(values ...V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = append(r.kept, values...)
}

func (r *records[V]) All() []V {
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.Clone(r.kept)
}

func (r *records[V]) where(is func(V) bool) []V {
	return slices.DeleteFunc(r.All(), func(v V) bool { return !is(v) })
}

func (r *records[V]) count() int { return len(r.All()) }

// headers are headers of text; one that is missing is empty.
type headers map[string]string

func hasHeaders(t *testing.T, d amqp091.Delivery, want headers) {
	t.Helper()
	got := headers{}
	for key := range want {
		got[key] = rabbit.Text(d, key)
	}
	assert.Equal(t, want, got, "headers of %s", rabbit.UUID(d))
}

func newRouter(t *testing.T, logger watermill.LoggerAdapter, middlewares ...message.HandlerMiddleware) *message.Router {
	t.Helper()
	router := must(message.NewRouter(message.RouterConfig{CloseTimeout: await.Bound}, logger))(t)
	router.AddMiddleware(middlewares...)

	return router
}

// bare gives a service a router with these middlewares and no others.
func bare(t *testing.T, svc *service, middlewares ...message.HandlerMiddleware) {
	t.Helper()
	svc.Router = newRouter(t, svc.Logs, middlewares...)
}

func runRouter(t *testing.T, router *message.Router) {
	t.Helper()
	runs(t, router.Run, router.Running(), router.Close)
}

// runs runs a router, or what has one, until the test ends.
func runs(t *testing.T, run func(context.Context) error, running <-chan struct{}, shut func() error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- run(context.Background()) }()
	t.Cleanup(func() {
		assert.NoError(t, shut())
		assert.NoError(t, <-ended)
	})

	select {
	case <-running:
	case err := <-ended:
		ended <- err
		require.FailNow(t, "it does not run", "%v", err)
	}
}

func inBackground(do func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()

	return done
}

// answer calls a handler with all messages, and answers as a router does.
func answer(messages <-chan *message.Message, handler message.HandlerFunc) {
	for msg := range messages {
		if _, err := handler(msg); err != nil {
			msg.Nack()
		} else {
			msg.Ack()
		}
	}
}

// setup says what a service is to look like. Everything but Handler has a default.
type setup struct {
	URI       string // the broker of all tests by default
	Queue     string // main queue and topic; a unique name by default
	QueueType string // of the main queue: classic (default, but for the strategy mode) or quorum
	Prefetch  int    // follows the handlers by default
	Tiers     bool   // the test is about retry queues: see withLadder and withStrategy
	// Delays are those of the default policy, 200 ms by default, unless Options have Policies.
	Delays []time.Duration
	// Options are those of the retrier. Logger is taken by the service, and so is OnEvent, which is
	// called after the event was recorded.
	Options amqpretry.Options
	// Configure changes the config before the retrier gets it. Optional.
	Configure func(*amqp.Config)
	// Handler is called after its call was recorded.
	Handler func(*message.Message) error
	// Route adds the handlers to the router itself, instead of one for Handler. Optional.
	Route func(*service)
	// KeepObjects leaves the queues to the test (or to the end of a private broker).
	KeepObjects bool
}

// service is what a user of the library runs: a router with the retry middleware, one handler, and
// a subscriber of the retrier; with a record of what happened in it.
type service struct {
	t       *testing.T
	Queue   string
	Retrier *adapter.Retrier
	Sub     *amqpretry.Subscriber
	Router  *message.Router
	Broker  *rabbit.Client // straight to the broker, whatever URI the service was given
	Logs    *logs
	Calls   *calls

	events records[retry.Event]
}

// confirmed is a config for watermill-amqp's publisher. Without confirms that closes its channel
// right behind a message, and a quorum queue that was declared a moment ago may lose it: 10 of
// 5,760 on a busy machine.
func confirmed(conf amqp.Config) amqp.Config {
	conf.Publish.ConfirmDelivery = true

	return conf
}

// mainQueueArguments are those of a main queue as people have them: nothing but the type.
func mainQueueArguments(queueType string) amqp091.Table {
	switch {
	case queueType == "" && strategyMode != "":
		queueType = "quorum"
	case queueType == "":
		queueType = "classic"
	}

	return amqp091.Table{"x-queue-type": queueType}
}

func (s setup) policies() config.Policies {
	switch p := s.Options.Policies; {
	case !p.Default.IsZero() || p.Topics != nil:
		return p
	case s.Delays != nil:
		return retries(s.Delays...)
	default:
		return retries(ms(200)...)
	}
}

func newService(t *testing.T, s setup) *service {
	t.Helper()

	if s.Queue == "" {
		s.Queue = uniqueName("promise")
	}
	if s.URI == "" {
		s.URI = brokertest.URI(t)
	}
	s.Options.Policies = s.policies()
	if s.Tiers && s.Options.Policies.Default.Strategy == "" {
		s.Options.Policies.Default.Strategy = config.StrategyQueues
	}
	if s.Options.CloseTimeout == 0 {
		s.Options.CloseTimeout = 3 * time.Second
	}
	if s.Options.HoldWarning == 0 {
		s.Options.HoldWarning = 300 * time.Millisecond
	}

	svc := &service{t: t, Queue: s.Queue, Broker: newRabbit(t, s.URI), Logs: newLogs(t), Calls: &calls{}}
	s.Options.Logger = svc.Logs
	s.Options.Prefetch = s.Prefetch
	then := s.Options.OnEvent
	s.Options.OnEvent = func(e retry.Event) {
		recorded := e
		if e.Message != nil {
			// it is not to be kept: the next try makes it again what it was on its arrival
			recorded.Message = e.Message.Copy()
		}
		svc.events.put(recorded)
		if then != nil {
			then(e)
		}
	}

	conf := amqp.NewDurableQueueConfig(s.URI)
	conf.Queue.Arguments = mainQueueArguments(s.QueueType)
	conf.Connection.Reconnect = fastReconnect()
	if s.Configure != nil {
		s.Configure(&conf)
	}

	svc.Retrier = newRetrier(t, conf, s.Options)
	svc.Sub = must(svc.Retrier.NewSubscriber())(t)

	if !s.KeepObjects {
		plan := must(svc.Retrier.Plan(s.Queue))(t)
		leave := objects.enter(s.Queue, plan)
		t.Cleanup(func() { // runs after the service has been closed
			for _, plan := range leave() {
				svc.Broker.RemovePlan(plan)
			}
		})
	}

	bare(t, svc, svc.Retrier.Middleware)
	if s.Route != nil {
		s.Route(svc)
	} else {
		svc.Router.AddConsumerHandler(uniqueName("handler"), s.Queue, svc.Sub, svc.recorded(s.Handler))
	}

	return svc
}

// objects are what services of tests have declared, by main queue. The last service of a queue
// removes all of it: a quorum queue that is deleted while another service declares it again can end
// RabbitMQ's supervisor of dead-lettering (3.10 and 4.0), and with it all further declarations of
// quorum queues.
var objects = declared{plans: map[string][]topology.Plan{}, users: map[string]int{}}

type declared struct {
	mu    sync.Mutex
	plans map[string][]topology.Plan
	users map[string]int
}

// enter notes what a service declares. Once it is closed, leave gives what is to be removed.
func (d *declared) enter(queue string, plan topology.Plan) (leave func() []topology.Plan) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users[queue]++
	d.plans[queue] = append(d.plans[queue], plan)

	return func() (plans []topology.Plan) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.users[queue]--; d.users[queue] == 0 {
			plans = d.plans[queue]
			delete(d.plans, queue)
			delete(d.users, queue)
		}

		return plans
	}
}

// start makes a service and runs it until the test ends, or it is closed before.
func start(t *testing.T, s setup) *service {
	t.Helper()
	svc := newService(t, s)
	svc.run()

	return svc
}

func (s *service) run() {
	s.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- s.Router.Run(context.Background()) }()
	s.t.Cleanup(func() { s.close() })

	select {
	case <-s.Router.Running():
	case err := <-ended:
		s.t.Fatalf("the router does not run: %v", err)
	}
}

// close closes as users do: the router, then the retrier. It returns how long that took.
func (s *service) close() time.Duration {
	began := time.Now()
	if err := s.Router.Close(); err != nil {
		s.t.Errorf("Router.Close: %v", err)
	}
	if err := s.Retrier.Close(); err != nil {
		s.t.Errorf("Retrier.Close: %v", err)
	}
	took := time.Since(began)
	s.checkEvents()

	return took
}

// checkEvents holds what every service was told against what events promise, whatever happened to
// it: each attempt has one end, and each failure one outcome.
func (s *service) checkEvents() {
	s.t.Helper()

	open := map[string]int{}
	await.Until(s.t, func() bool {
		attempts, outcomes := 0, 0
		for _, e := range s.Events() {
			switch e.Kind {
			case retry.EventCall:
				attempts++
			case retry.EventSucceeded, retry.EventRequeued:
				attempts--
			case retry.EventFailed:
				attempts--
				if e.Verdict.Action != retry.ActionRetryNow {
					outcomes++
				}
			case retry.EventUnhandled:
				outcomes++
			case retry.EventRetried, retry.EventPostponed, retry.EventDeadLettered, retry.EventDropped,
				retry.EventAbandoned:
				outcomes--
			}
		}
		open = map[string]int{"attempts without an end": attempts, "failures without an outcome": outcomes}

		return attempts == 0 && outcomes == 0
	}, "events: %v", &open)
	if !strings.HasPrefix(s.t.Name(), "TestEarly_") {
		assert.Empty(s.t, s.Events(retry.EventReturnedEarly), "events: nothing comes back too early")
	}
}

func (s *service) recorded(h func(*message.Message) error) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		s.Calls.add(msg)
		return h(msg)
	}
}

// dlq and retry name the queues of the plan, with default names.
func (s *service) dlq() string      { return s.Queue + ".dlq" }
func (s *service) exchange() string { return s.Queue + ".retry" }
func (s *service) retryQueue(d time.Duration) string {
	return s.Queue + ".retry." + config.FormatDelay(d)
}

func (s *service) publish(ids ...string) {
	s.t.Helper()
	s.Broker.Publish(s.Queue, rabbit.Messages(ids...)...)
}

// Events are what OnEvent was told so far, of these kinds; of all without one.
func (s *service) Events(kinds ...retry.EventKind) []retry.Event {
	return s.events.where(func(e retry.Event) bool { return len(kinds) == 0 || slices.Contains(kinds, e.Kind) })
}

func (s *service) Held() []*topology.HeldError {
	var held []*topology.HeldError
	for _, e := range s.Events(retry.EventHeld) {
		err := errorAs[*topology.HeldError](s.t, e.Err)
		held = append(held, err)
	}

	return held
}

// reportedHeld waits for a report that so many deliveries are held, and gives it.
func (s *service) reportedHeld(n int) *topology.HeldError {
	s.t.Helper()
	var last *topology.HeldError
	await.Until(s.t, func() bool {
		held := s.Held()
		if len(held) == 0 {
			return false
		}
		last = held[len(held)-1]

		return last.Held == n
	}, "a report of %d held deliveries", n)

	return last
}

func (s *service) Letters() []retry.Event { return s.Events(retry.EventDeadLettered) }

func newRetrier(t *testing.T, conf amqp.Config, options amqpretry.Options) *adapter.Retrier {
	t.Helper()
	options.Policies = withLadder(options.Policies)
	options = withStrategy(conf, options)
	retrier := must(adapter.New(conf, options))(t)
	t.Cleanup(func() { require.NoError(t, retrier.Close()) })

	return retrier
}

func fastReconnect() *amqp.ReconnectConfig {
	return &amqp.ReconnectConfig{
		BackoffInitialInterval: 50 * time.Millisecond, BackoffRandomizationFactor: 0.2, BackoffMultiplier: 1.5,
		BackoffMaxInterval: 500 * time.Millisecond,
	}
}

type call struct {
	At      time.Time
	ID      string // message UUID
	Attempt int    // retry.Attempt.Number; 0 for a message that is not the retrier's
}

type calls struct{ records[call] }

func (c *calls) add(msg *message.Message) {
	attempt, _ := retry.AttemptFromContext(msg.Context())
	c.put(call{At: time.Now(), ID: msg.UUID, Attempt: attempt.Number})
}

func (c *calls) of(id string) []call { return c.where(func(c call) bool { return c.ID == id }) }

func (c *calls) attempts(id string) []int {
	var numbers []int
	for _, c := range c.of(id) {
		numbers = append(numbers, c.Attempt)
	}

	return numbers
}

func (c *calls) ids() map[string]int {
	n := map[string]int{}
	for _, c := range c.All() {
		n[c.ID]++
	}

	return n
}

const tick = 20 * time.Millisecond

// often returns how often a test repeats what chance decides: with -short, as in make test, a
// quarter as often.
func often(whole int) int {
	if testing.Short() {
		return (whole + 3) / 4
	}

	return whole
}

var errFate = fate.Err

// byFate is a handler that does with a message what its id begins with.
func byFate(msg *message.Message) error {
	attempt, _ := retry.AttemptFromContext(msg.Context())
	return fate.Handle(msg.UUID, attempt)
}

func succeeds(id string, attempt int) bool { return !fate.Of(id).Fails(attempt) }

// fates gives n ids: two of five succeed at once, one after one or two failures, one never, and one
// panics.
func fates(n int) []string {
	kinds := []string{"ok", "never", "once", "panic", "ok", "ok", "never", "twice", "panic", "ok"}
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%d", kinds[i%len(kinds)], i)
	}

	return ids
}

// doomed gives the reasons with which these messages must end in the dead-letter queue.
func doomed(ids []string) map[string]string {
	expected := map[string]string{}
	for _, id := range ids {
		if f := fate.Of(id); f.Dies() {
			expected[id] = string(f.Reasons()[0])
		}
	}

	return expected
}

func (s *service) processed() int {
	done := map[string]bool{}
	for _, c := range s.Calls.All() {
		if succeeds(c.ID, c.Attempt) {
			done[c.ID] = true
		}
	}

	return len(done)
}

// deadLettered counts the messages of which the library says that they are in the dead-letter
// queue.
func (s *service) deadLettered() int {
	dead := map[string]bool{}
	for _, l := range s.Letters() {
		if l.Message != nil { // else no handler saw it
			dead[l.Message.UUID] = true
		}
	}

	return len(dead)
}

// finish waits until every message has met its fate: processed, or in the dead-letter queue for the
// right reason. Then it closes the service and counts what there was too much of, which may not
// exceed the bound.
func (s *service) finish(ids []string, within time.Duration, bound int) {
	s.t.Helper()
	letters := doomed(ids)
	await.Within(s.t, within, func() bool {
		return s.processed() >= len(ids)-len(letters) && s.deadLettered() >= len(letters)
	}, "every message ends")

	s.close()

	found := s.Broker.Drain(s.dlq())
	require.Equal(s.t, letters, reasons(found), "dead letters")

	left := 0
	plan := must(s.Retrier.Plan(s.Queue))(s.t)
	for _, q := range plan.Queues {
		left += len(s.Broker.Drain(q.Name))
	}
	left += len(s.Broker.Drain(s.Queue))

	duplicates := len(found) - len(letters) + left
	s.t.Logf("%d messages, %d calls, %d dead letters, %d duplicates", len(ids), s.Calls.count(), len(letters),
		duplicates)
	require.LessOrEqual(s.t, duplicates, bound, "duplicates")
}

// newRabbit returns a client of the broker, also where the service reaches it through a proxy.
func newRabbit(t *testing.T, uri string) *rabbit.Client { return rabbit.New(t, brokerBehind(uri)) }

func reasons(letters []amqp091.Delivery) map[string]string {
	found := map[string]string{}
	for _, d := range letters {
		found[rabbit.UUID(d)] = rabbit.Text(d, header.Reason)
	}

	return found
}

// logs keeps what is logged, and shows it when the test fails.
type logs struct {
	fields watermill.LogFields
	kept   *records[logEntry]
}

type logEntry struct {
	At     time.Time
	Level  string // error, info, debug
	Text   string
	Err    error
	Fields watermill.LogFields
}

func (e logEntry) String() string {
	keys := slices.Sorted(maps.Keys(e.Fields))
	var fields strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&fields, " %s=%v", k, e.Fields[k])
	}

	return fmt.Sprintf("%s %-5s %s err=%v%s", e.At.Format("15:04:05.000"), e.Level, e.Text, e.Err, &fields)
}

var _ watermill.LoggerAdapter = (*logs)(nil)

func newLogs(t *testing.T) *logs {
	l := &logs{kept: &records[logEntry]{}}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		all := l.All()
		const most = 60
		if skipped := len(all) - most; skipped > 0 {
			t.Logf("(%d earlier log entries)", skipped)
			all = all[skipped:]
		}
		for _, e := range all {
			t.Log(e)
		}
	})

	return l
}

func (l *logs) All() []logEntry { return l.kept.All() }

// with gives the entries whose text contains a part.
func (l *logs) with(part string) []logEntry {
	return l.kept.where(func(e logEntry) bool { return strings.Contains(e.Text, part) })
}

func (l *logs) add(level, text string, err error, fields watermill.LogFields) {
	l.kept.put(logEntry{time.Now(), level, text, err, l.fields.Add(fields)})
}

func (l *logs) Error(text string, err error, f watermill.LogFields) { l.add("error", text, err, f) }
func (l *logs) Info(text string, f watermill.LogFields)             { l.add("info", text, nil, f) }
func (l *logs) Debug(text string, f watermill.LogFields)            { l.add("debug", text, nil, f) }
func (l *logs) Trace(string, watermill.LogFields)                   {} // three for every message
func (l *logs) With(f watermill.LogFields) watermill.LoggerAdapter {
	return &logs{l.fields.Add(f), l.kept}
}
