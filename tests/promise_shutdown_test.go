package tests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/env"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// Services come and go at random moments while messages of every fate run through a few queues.
// SEED repeats the choices (what the broker and the scheduler make of them differs), CLOSES says
// how many services are closed, REPORT is where a table is written.

const (
	// shutdownTimeout is CloseTimeout here. No handler takes that long, so no close gives one up.
	shutdownTimeout = 2 * time.Minute
	// shutdownBound is how long a close may take on a busy machine. One that waits for its timeout,
	// for the timeout of a handshake or a write, or for something that never comes, takes longer.
	shutdownBound = 25 * time.Second
)

type wayToClose struct {
	name string
	// steps are taken one after the other, or all at the same time.
	steps  []func(*lived) error
	atOnce bool
	// early closes at any moment from the start on, while Subscribe may still declare; else the
	// service consumes before.
	early bool
	// plain subscribes without a router.
	plain bool
	// held keeps copies from being stored until the close has begun.
	held bool
}

var waysToClose = func() []wayToClose {
	type steps = []func(*lived) error
	router := func(s *lived) error { return s.router.Close() }
	retrier := func(s *lived) error { return s.retrier.Close() }
	own := func(s *lived) error { return s.subscriber.Close() }
	stop := func(s *lived) error { s.stop(); return nil }
	store := func(s *lived) error {
		time.AfterFunc(s.pause, func() { s.network.allow(forwarder) })
		return nil
	}
	ended, leave := (*lived).ended, (*lived).leave

	return []wayToClose{
		{name: "Router.Close, Retrier.Close", steps: steps{router, retrier}},
		{name: "Retrier.Close, Router.Close", steps: steps{retrier, router}},
		{name: "context of Run, Retrier.Close", steps: steps{stop, ended, retrier}},
		{name: "Subscriber.Close, Router.Close, Retrier.Close", steps: steps{own, router, retrier}},
		{name: "all at the same time", atOnce: true, steps: steps{router, retrier, own, retrier, stop}},
		{name: "context of Subscribe, Retrier.Close", plain: true, steps: steps{stop, ended, retrier}},
		{name: "Retrier.Close without router", plain: true, steps: steps{retrier, ended}},
		{name: "Retrier.Close at the start", early: true, steps: steps{retrier, leave}},
		{name: "context of Run at the start", early: true, steps: steps{stop, leave, retrier}},
		{name: "context of Subscribe at the start", early: true, plain: true, steps: steps{stop, ended, retrier}},
		{name: "Router.Close, Retrier.Close, copies wait", held: true, steps: steps{store, router, retrier}},
	}
}()

func (w wayToClose) close(s *lived) error {
	errs := make([]error, len(w.steps))
	var all sync.WaitGroup
	for i, step := range w.steps {
		all.Go(func() { errs[i] = step(s) })
		if !w.atOnce {
			all.Wait()
		}
	}
	all.Wait()

	return errors.Join(errs...)
}

type shutdownQueue struct {
	name, queueType string
	concurrency     int
	stock           bool // amqp.NewSubscriber instead of the retrier's own
	ledger          *shutdownLedger

	mu   sync.Mutex
	ids  []string
	sums shutdownSums
}

type shutdowns struct {
	t       *testing.T
	uri     string
	broker  *rabbit.Client
	outputs string
	lives   atomic.Int32

	mu    sync.Mutex
	times map[string][]time.Duration // of the closes, by way
	wrong []string

	stock   stockSockets
	timeout time.Duration // CloseTimeout
	faults  []func(*proxy)
}

func TestShutdownAtRandomMoments(t *testing.T) { // not parallel: others' goroutines are none of its business
	before := goleak.IgnoreCurrent()
	t.Run("closes", testShutdowns) // what it leaves to its clean-up is gone behind it
	// A router that could not start leaves this behind.
	router := goleak.IgnoreAnyFunction(
		"github.com/ThreeDotsLabs/watermill/message.(*Router).watchAllHandlersStopped.func1")
	var leaked error
	t.Cleanup(func() { assert.NoError(t, leaked) })
	await.Until(t, func() bool {
		leaked = goleak.Find(before, router)
		return leaked == nil
	}, "the end of all goroutines")
}

func testShutdowns(t *testing.T) {
	seed, closes := env.Int(t, "SEED", int(time.Now().UnixNano()%1e9)), env.Int(t, "CLOSES", often(110))
	t.Logf("SEED=%d CLOSES=%d", seed, closes)

	run := newShutdowns(t, shutdownTimeout)
	queues := []*shutdownQueue{
		{queueType: "quorum", concurrency: 8}, {queueType: "classic", concurrency: 1},
		{queueType: "quorum", concurrency: 1}, {queueType: "classic", concurrency: 8},
		{queueType: "quorum", concurrency: 1, stock: true},
	}
	lasted := run.all(queues, closes, seed)

	report.Write(t, run.report(queues, seed, lasted))
	for i, wrong := range run.wrong {
		if i == 20 {
			t.Errorf("and %d more", len(run.wrong)-i)
			break
		}
		t.Error(wrong)
	}
	run.stock.close()
}

// Nothing hangs and nothing is lost either when the network or the broker fails before the close,
// or in the middle of it.
func TestShutdownWhileTheBrokerIsAway(t *testing.T) {
	t.Parallel()
	seed, closes := env.Int(t, "SEED", int(time.Now().UnixNano()%1e9)), env.Int(t, "CLOSES", often(40))
	t.Logf("SEED=%d CLOSES=%d", seed, closes)

	// A close has to give up a channel, two connections, and a dial, which takes up to 6 s. With
	// the heartbeats of begin, one that waits for the network instead takes minutes.
	run := newShutdowns(t, 500*time.Millisecond)
	run.faults = []func(*proxy){
		func(p *proxy) { p.stall(anyone) },                // frozen
		func(p *proxy) { p.stallAnswers(anyone) },         // it gets all, and nobody hears of it
		func(p *proxy) { p.stall(anyone); p.cut(anyone) }, // a black hole, into which everybody dials
		func(p *proxy) { p.refuse(anyone) },               // down
		func(p *proxy) { p.cut(anyone) },                  // back at once
		func(p *proxy) { p.cutAfter(anyone, 500) },        // in the middle of a frame
		func(p *proxy) { p.stall(forwarder) },             // copies only
		func(p *proxy) { p.stall(subscriber); p.cut(forwarder) },
	}
	queues := []*shutdownQueue{{queueType: "quorum", concurrency: 8}, {queueType: "classic", concurrency: 1}}
	lasted := run.all(queues, closes, seed)

	t.Log("\n" + run.report(queues, seed, lasted))
	for _, wrong := range run.wrong {
		t.Error(wrong)
	}
}

// stockSockets are those of watermill-amqp's own publishers and subscribers. One that is closed
// right after it was made may take its own close for a loss, connect again, and leave that
// connection behind.
type stockSockets struct {
	mu   sync.Mutex
	open []net.Conn
}

func (k *stockSockets) dialling(conf amqp.Config) amqp.Config {
	wrapConnections(&conf, func(conn net.Conn) net.Conn {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.open = append(k.open, conn)

		return conn
	})

	return conf
}

func (k *stockSockets) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, conn := range k.open {
		_ = conn.Close()
	}
}

func newShutdowns(t *testing.T, timeout time.Duration) *shutdowns {
	t.Helper()
	r := &shutdowns{
		t: t, uri: brokertest.URI(t), broker: newRabbit(t, brokertest.URI(t)), outputs: uniqueName("shutdown-outputs"),
		times: map[string][]time.Duration{}, timeout: timeout,
	}
	r.broker.Declare(r.outputs, amqp091.Table{"x-queue-type": "classic"})

	return r
}

// all lets so many services live on the queues, some side by side, and then one on each that does
// what is left. It returns how long the first lasted.
func (r *shutdowns) all(queues []*shutdownQueue, closes, seed int) time.Duration {
	for i, q := range queues {
		q.name, q.ledger = uniqueName(fmt.Sprintf("shutdown-%d", i)), newShutdownLedger()
	}
	turns := make(chan int, closes)
	for turn := range closes {
		turns <- turn
	}
	close(turns)

	began := time.Now()
	var all sync.WaitGroup
	const sideBySide = 8
	for range sideBySide {
		all.Add(1)
		go func() {
			defer all.Done()
			for turn := range turns {
				random := rand.New(rand.NewPCG(uint64(seed), uint64(turn)))
				q := queues[turn%len(queues)]
				r.publish(q, 8+random.IntN(8))
				r.live(q, random)
			}
		}()
	}
	all.Wait()
	lasted := time.Since(began)

	for _, q := range queues {
		all.Add(1)
		go func() {
			defer all.Done()
			r.finish(q)
		}()
	}
	all.Wait()

	return lasted
}

type lived struct {
	number     int
	retrier    *adapter.Retrier
	router     *message.Router // none without one
	subscriber interface {
		message.Subscriber
		Close() error
	}
	network *proxy // none, unless copies are to wait

	stop  context.CancelFunc // ends the context of Run, or of Subscribe
	over  chan error         // how Run, or the loop over Subscribe's channel, has ended
	pause time.Duration
}

func (s *lived) ended() error {
	select {
	case err := <-s.over:
		return err
	case <-time.After(await.Bound):
		return fmt.Errorf("service %d does not end", s.number)
	}
}

// leave is ended where Subscribe may have failed, which is an error then. Such a router is not
// closed: it would wait for its time to close, for handlers that it has not started.
func (s *lived) leave() error {
	select {
	case <-s.over: //nolint:errcheck // as it may
		return nil
	case <-time.After(await.Bound):
		return fmt.Errorf("service %d does not end", s.number)
	}
}

func (r *shutdowns) live(q *shutdownQueue, random *rand.Rand) {
	way := waysToClose[random.IntN(len(waysToClose))]
	for q.stock && (way.plain || way.held || way.early) { // which it does not promise anything about
		way = waysToClose[random.IntN(len(waysToClose))]
	}
	var fault func(*proxy)
	if r.faults != nil {
		fault = r.faults[random.IntN(len(r.faults))]
	}
	s, err := r.begin(q, way, fault, random)
	if err != nil {
		r.complain("service on %s: %v", q.name, err)
		return
	}

	moment := time.Duration(random.IntN(400)) * time.Millisecond
	if way.early {
		moment = time.Duration(random.IntN(40)) * time.Millisecond
	}
	<-time.After(moment)

	if fault != nil {
		over := make(chan struct{})
		happens := time.AfterFunc(time.Duration(random.IntN(600))*time.Millisecond-moment, func() {
			fault(s.network)
			close(over)
		})
		defer s.network.stop()
		defer func() {
			if !happens.Stop() {
				<-over
			}
		}()
	}

	began := time.Now()
	err = way.close(s)
	took := time.Since(began)
	closed := time.Now()
	s.stop()
	if q.stock {
		_ = s.subscriber.Close() // the end of Run's context does not
	}
	if s.network != nil && fault == nil {
		s.network.stop()
	}
	if err != nil {
		r.complain("service %d, %s: %v", s.number, way.name, err)
	}
	if took > shutdownBound {
		r.complain("service %d, %s: took %s", s.number, way.name, took)
	}
	if q.stock {
		way.name += " (stock subscriber)"
	} else if r.faults == nil {
		q.ledger.calledAfter(s.number, closed)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.times[way.name] = append(r.times[way.name], took)
}

func (r *shutdowns) begin(q *shutdownQueue, way wayToClose, fault func(*proxy), random *rand.Rand) (*lived, error) {
	s := &lived{number: int(r.lives.Add(1)), over: make(chan error, 1),
		pause: time.Duration(random.IntN(500)) * time.Millisecond}
	uri := r.uri
	if way.held || fault != nil {
		s.network = newProxy(r.t, uri)
		uri = s.network.URI
	}
	if way.held {
		s.network.refuse(forwarder)
	}
	conf := amqp.NewDurableQueueConfig(uri)
	// Up to RabbitMQ 4.2 each close counts as a return of what was delivered ahead, so both limits
	// are as high as they can be.
	conf.Queue.Arguments = amqp091.Table{"x-queue-type": q.queueType}
	if q.queueType == "quorum" {
		conf.Queue.Arguments["x-delivery-limit"] = int64(100_000)
	}
	conf.Publish.ConfirmDelivery = true
	conf.Connection.Reconnect = fastReconnect()
	if fault != nil {
		conf.Connection.AmqpConfig = &amqp091.Config{Heartbeat: 5 * time.Minute, Locale: "en_US"}
	}

	policies := retries(ms(100, 200)...)
	policies.Default.CrashLimit = 19

	var err error
	s.retrier, err = adapter.New(conf, amqpretry.Options{
		Policies: withLadder(policies), Logger: watermill.NopLogger{}, Concurrency: q.concurrency,
		CloseTimeout: r.timeout,
		OnEvent:      func(e retry.Event) { q.ledger.hear(s.number, e) },
	})
	if err != nil {
		return nil, err
	}
	if q.stock {
		s.subscriber, err = amqp.NewSubscriber(r.stock.dialling(s.retrier.Config()), watermill.NopLogger{})
	} else {
		s.subscriber, err = s.retrier.NewSubscriber()
	}
	if err != nil {
		return nil, err
	}
	if random.IntN(4) == 0 && !q.stock {
		if err := r.archive(s, q); err != nil {
			return nil, errors.Join(err, s.retrier.Close())
		}
	}

	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	handler := func(msg *message.Message) ([]*message.Message, error) {
		call := q.ledger.begin(s.number, msg)
		failed := true // also when it panics
		var (
			outputs []*message.Message
			err     error
		)
		defer func() {
			if failed && err == nil {
				err = errFate
			}
			q.ledger.end(call, msg, err)
		}()
		outputs, err = meet(msg, s.pause/4)
		failed = false

		return outputs, err
	}

	if way.plain {
		return s, r.loop(ctx, s, q, handler, way.early)
	}

	return s, r.route(ctx, s, q, handler, way.early)
}

func (r *shutdowns) route(ctx context.Context, s *lived, q *shutdownQueue, handler message.HandlerFunc,
	early bool) error {
	conf := r.stock.dialling(s.retrier.Config())
	conf.Connection.AmqpURI = r.uri // past the network's faults: a publisher that nobody answers keeps its handler
	stock, err := amqp.NewPublisher(conf, watermill.NopLogger{})
	if err != nil {
		return err
	}
	publisher := &ledgerPublisher{Publisher: stock, ledger: q.ledger, life: s.number}
	s.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: await.Bound}, nil)
	if err != nil {
		return err
	}
	s.router.AddMiddleware(s.retrier.Middleware)
	s.router.AddHandler("shutdown", q.name, s.subscriber, r.outputs, publisher, handler)
	go func() {
		s.over <- s.router.Run(ctx)
		_ = publisher.Close() // where the handler has not come to run
	}()
	if early {
		return nil
	}

	select {
	case <-s.router.Running():
		return nil
	case err := <-s.over:
		return fmt.Errorf("the router does not run: %w", err)
	}
}

func (r *shutdowns) loop(ctx context.Context, s *lived, q *shutdownQueue, handler message.HandlerFunc,
	early bool) error {
	handler = s.retrier.Middleware(handler)
	subscribed := make(chan error, 1)
	go func() {
		defer close(s.over)
		messages, err := s.subscriber.Subscribe(ctx, q.name)
		subscribed <- err
		if err != nil {
			return
		}
		var all sync.WaitGroup
		defer all.Wait()
		for msg := range messages {
			all.Add(1)
			go func() {
				defer all.Done()
				outputs, err := handler(msg)
				for _, o := range outputs {
					q.ledger.sent(s.number, o.UUID) // there is no publisher
				}
				if err == nil {
					msg.Ack()
				} else {
					msg.Nack()
				}
			}()
		}
	}()
	if early {
		return nil
	}

	return <-subscribed
}

func (r *shutdowns) archive(s *lived, q *shutdownQueue) error {
	letters, err := s.retrier.NewDeadLetterSubscriber()
	if err != nil {
		return err
	}
	messages, err := letters.Subscribe(context.Background(), q.name) // ended by Retrier.Close
	// RabbitMQ 3.10 answers so where a queue that was just declared has not answered in time; a
	// service would be started again.
	for internal := (*amqp091.Error)(nil); errors.As(err, &internal) &&
		internal.Code == amqp091.InternalError; internal = nil {
		messages, err = letters.Subscribe(context.Background(), q.name)
	}
	if err != nil {
		return err
	}
	go func() {
		for msg := range messages {
			q.ledger.archive(msg.UUID)
			msg.Ack()
		}
	}()

	return nil
}

// ledgerPublisher notes what the broker has confirmed.
type ledgerPublisher struct {
	message.Publisher
	ledger *shutdownLedger
	life   int
	open   sync.RWMutex // watermill-amqp has a data race between the close and a publish
}

func (p *ledgerPublisher) Close() error {
	p.open.Lock()
	defer p.open.Unlock()

	return p.Publisher.Close()
}

func (p *ledgerPublisher) Publish(topic string, messages ...*message.Message) error {
	p.open.RLock()
	defer p.open.RUnlock()
	if err := p.Publisher.Publish(topic, messages...); err != nil {
		return err
	}
	for _, msg := range messages {
		p.ledger.sent(p.life, msg.UUID)
	}

	return nil
}

// publish adds messages of every fate. The first call declares the queue as the services do.
func (r *shutdowns) publish(q *shutdownQueue, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.ids)-q.ledger.done() > 150 { // they cannot keep up
		return
	}
	ids := shutdownFates(q.queueType, len(q.ids), n)
	if len(q.ids) == 0 {
		arguments := amqp091.Table{"x-queue-type": q.queueType}
		if q.queueType == "quorum" {
			arguments["x-delivery-limit"] = int64(100_000)
		}
		r.broker.Declare(q.name, arguments)
	}
	r.broker.Publish(q.name, rabbit.Messages(ids...)...)
	q.ids = append(q.ids, ids...)
}

// finish lets a last service do what is left, and closes it when everything has met its fate.
func (r *shutdowns) finish(q *shutdownQueue) {
	way := waysToClose[0]
	last := &shutdownQueue{name: q.name, queueType: q.queueType, concurrency: 8, ledger: q.ledger}
	s, err := r.begin(last, way, nil, rand.New(rand.NewPCG(0, 0)))
	if err != nil {
		r.complain("the last service on %s: %v", q.name, err)
		return
	}
	assert.Eventually(r.t, func() bool {
		return q.ledger.done() == len(q.ids)
	}, await.Bound, 50*time.Millisecond, "everything on %s", q.name)
	plan := must(s.retrier.Plan(q.name))(r.t)
	queues := []string{q.name}
	for _, queue := range plan.Queues {
		queues = append(queues, queue.Name)
	}
	if q.stock && r.faults == nil {
		r.settle(q, queues)
	}
	if err := way.close(s); err != nil {
		r.complain("the last service on %s: %v", q.name, err)
	}
	s.stop()

	defer r.broker.Remove(plan.RetryExchange, queues...)

	letters := map[string]int{}
	for _, queue := range queues {
		for _, d := range r.broker.Drain(queue) {
			switch {
			case queue == q.name+".dlq":
				letters[rabbit.UUID(d)]++
			case r.faults == nil: // else it is a duplicate
				r.complain("%s is left in %s", rabbit.UUID(d), queue)
			}
		}
	}
	sums, wrong := q.ledger.judge(q.ids, letters, !q.stock && r.faults == nil)
	if sums.Crashed > 0 && r.faults == nil && (q.queueType == "classic" || countsFailuresOnly(r.t)) {
		wrong = append(wrong, fmt.Sprintf("%d messages of %s are taken for crashed", sums.Crashed, q.name))
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrong = append(r.wrong, wrong...)
	q.sums = sums
}

// settle waits until the duplicates have met their fate, too: a stock subscriber that closes gives
// back messages whose copies the broker has confirmed.
func (r *shutdowns) settle(q *shutdownQueue, queues []string) {
	waits := func(queue string) bool { return queue != q.name+".dlq" && r.broker.Depth(queue) > 0 }
	calls, quiet := -1, 0
	assert.Eventually(r.t, func() bool {
		quiet++
		if n := q.ledger.count(); n != calls || slices.ContainsFunc(queues, waits) {
			calls, quiet = n, 0
		}

		// A second, which is longer than every delay and every call. It is counted in looks: in a
		// second in which the process stands still, nothing happens either.
		return quiet > 20
	}, await.Bound, 50*time.Millisecond, "duplicates on %s", q.name)
}

func (r *shutdowns) complain(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
}

func (r *shutdowns) report(queues []*shutdownQueue, seed int, lasted time.Duration) string {
	var b strings.Builder
	total := 0
	fmt.Fprint(&b, "| closed by | times | median | longest |\n|---|---|---|---|\n")
	for _, way := range slices.Sorted(maps.Keys(r.times)) {
		times := slices.Sorted(slices.Values(r.times[way]))
		total += len(times)
		fmt.Fprintf(&b, "| %s | %d | %s | %s |\n", way, len(times),
			times[len(times)/2].Round(time.Millisecond), times[len(times)-1].Round(time.Millisecond))
	}
	fmt.Fprintf(&b, "\n%d closes in %s, SEED=%d\n\n", total, lasted.Round(time.Second), seed)
	fmt.Fprint(&b, "| queue | messages | calls | dead letters | lost | given back uncounted | called after success | "+
		"taken for crashed |\n|---|---|---|---|---|---|---|---|\n")
	for _, q := range queues {
		kind := fmt.Sprintf("%s, concurrency %d", q.queueType, q.concurrency)
		if q.stock {
			kind = q.queueType + ", stock subscriber"
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d | %d |\n", kind, q.sums.Messages, q.sums.Calls,
			q.sums.DeadLetters, q.sums.Lost,
			q.sums.Again, q.sums.AfterSuccess, q.sums.Crashed)
	}
	if len(r.wrong) > 0 {
		fmt.Fprintf(&b, "\n%d contradictions\n", len(r.wrong))
	}

	return b.String()
}

// A service that is to stop while its router still subscribes, to a broker that does not answer,
// ends at once with the context of Run.
func TestStopWhileTheRouterSubscribes(t *testing.T) {
	t.Parallel()
	proxy := newProxy(t, brokertest.URI(t))
	svc := newService(t, setup{URI: proxy.URI, Handler: succeed})
	proxy.stall(anyone)
	running, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- svc.Router.Run(running) }()
	select {
	case <-svc.Router.Running():
		t.Fatal("it has subscribed")
	case <-time.After(300 * time.Millisecond):
	}
	began := time.Now()
	end()
	require.Error(t, await.Value(t, ended, "the end of Run"))
	assert.Less(t, time.Since(began), 2*time.Second)
	require.NoError(t, svc.Retrier.Close())
	assert.Less(t, time.Since(began), 8*time.Second)
}
