package consumer

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
)

// row is one of the table of transitions.
type row struct {
	state state
	event event
}

func rows() (all []row) {
	for s, events := range transitions {
		for e := range events {
			all = append(all, row{s, e})
		}
	}
	slices.SortFunc(all, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.state, b.state), cmp.Compare(a.event, b.event))
	})

	return all
}

// names are those of the methods that do it.
func names(actions []action) (all []string) {
	for _, a := range actions {
		name := runtime.FuncForPC(reflect.ValueOf(a).Pointer()).Name()
		all = append(all, name[strings.LastIndex(name, ".")+1:])
	}

	return all
}

// From each state every other one can be reached, the end at once and by one event only.
func TestTransitions(t *testing.T) {
	reached := func(from state) map[state]bool {
		found := map[state]bool{}
		for next := []state{from}; len(next) > 0; next = next[1:] {
			for _, to := range transitions[next[0]] {
				if !found[to.next] {
					found[to.next] = true
					next = append(next, to.next)
				}
			}
		}

		return found
	}
	for from := range transitions {
		for to := range transitions {
			assert.True(t, reached(from)[to], "from %s to %s", from, to)
		}
		next, actions := step(from, eventOver)
		assert.Equal(t, stateEnded, next)
		assert.Equal(t, []string{"end"}, names(actions))
	}
	for _, r := range rows() {
		next, actions := step(r.state, r.event)
		assert.Equal(t, r.event == eventOver, next == stateEnded, r)
		if begin := slices.Index(names(actions), "handOut"); begin >= 0 {
			assert.Contains(t, names(actions)[:begin], "fit", "%v: the full prefetch comes first", r)
		}
	}
	assert.Panics(t, func() { step(stateEnded, eventOver) })
}

// The package's comment shows the table as it is.
func TestTransitions_Doc(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	var table strings.Builder
	for _, s := range []state{stateStarting, stateOpen, stateAlone, stateLine, statePaused} {
		events := slices.Sorted(maps.Keys(transitions[s]))
		for _, e := range events {
			next, actions := step(s, e)
			fmt.Fprintf(&table, "%s\n", strings.TrimRight(fmt.Sprintf("//\t%-9s %-10s → %-9s %s", s, e, next,
				strings.Join(names(actions), ", ")), " "))
		}
	}
	assert.Contains(t, string(doc), table.String())
}

// Thousands of steps at random keep the promises of an intake, and play each row of the table.
func TestIntake_RandomWalks(t *testing.T) {
	walks := uint64(240)
	if testing.Short() {
		walks = 120
	}
	played := map[row]int{}
	for seed := range walks {
		synctest.Test(t, func(t *testing.T) { newWalk(t, seed, played).run() })
		if t.Failed() {
			t.Fatalf("walk %d", seed)
		}
	}
	total := 0
	for _, r := range rows() {
		assert.Positive(t, played[r], r)
		total += played[r]
	}
	t.Logf("%d steps: %v", total, played)
}

// stuck is how long some handlers take.
const stuck = 20 * time.Minute

// walk is one session of an intake with a broker that is a list of messages and consumers.
type walk struct {
	t      *testing.T
	intake *intake
	broker *modelBroker
	turns  *Turns
	played map[row]int
	random *rand.Rand // of the one who publishes
	seed   uint64

	workers sync.WaitGroup
	mu      sync.Mutex
	inHand  map[uint64]received // by delivery tag
	given   map[uint64]bool     // to a worker at any time
}

func newWalk(t *testing.T, seed uint64, played map[row]int) *walk {
	random := rand.New(rand.NewPCG(seed, 0))
	pick := func(values ...int) int { return values[random.IntN(len(values))] }
	w := &walk{t: t, turns: &Turns{}, played: played, random: random, seed: seed, inHand: map[uint64]received{},
		given: map[uint64]bool{}}
	w.broker = &modelBroker{t: t, latency: time.Duration(pick(0, 1, 20, 200)) * time.Millisecond,
		consumers: map[string]*modelConsumer{}, unsettled: map[uint64]*modelDelivery{}, acked: map[uint64]bool{},
		cleared: map[uint64]bool{}}
	settings := Settings{Turns: w.turns, Concurrency: pick(1, 2, 4), Prefetch: pick(0, 0, 0, 5)}
	countsLeft := pick(0, 1) > 0
	switch seed % 8 { // see publishAll
	case 0:
		settings.Concurrency = 1
	case 1:
		settings.Prefetch, countsLeft = 20, false
	}
	sub := &subscription{
		consumer: &Consumer{settings: settings}, logger: watermill.NopLogger{}, pace: newPace(settings.Concurrency),
		queue: Queue{Name: "q", Policy: config.Policy{CrashLimit: 10}},
	}
	if pick(0, 0, 1) > 0 {
		sub.queue.DeadLettersOf = "main"
	}
	s := &session{sub: sub, queue: &sub.queue, channel: w.broker, acker: idleAcker(),
		stop: make(chan struct{}), countsLeft: countsLeft}
	z := sizesOf(&settings, s.queue)
	w.intake = &intake{session: s, tag: "tag", out: make(chan received, 2*z.most), taken: make(chan struct{}),
		suspectsFrom: int64(pick(1, 2)), sizes: z, usual: z, ticks: time.NewTimer(tick),
		othersAreIdle: func() bool { return seed%3 > 0 }}
	w.intake.ticks.Stop()
	s.acker.channel = w.broker

	return w
}

// write writes as the acker does. It does not wait in the lock, as time stands still then in a
// synctest bubble.
func (w *walk) write(write func(a *acker)) {
	a := w.intake.acker
	for !a.writing.TryLock() {
		<-time.After(time.Millisecond)
	}
	defer a.writing.Unlock()
	write(a)
}

func (w *walk) acknowledge() {
	for range w.intake.acker.wake {
		w.write(func(a *acker) {
			upTo, single := a.batch()
			if upTo > 0 {
				_ = a.channel.Ack(upTo, true)
			}
			for _, tag := range single {
				_ = a.channel.Ack(tag, false)
			}
		})
	}
}

func (w *walk) requeue(tag uint64) {
	w.write(func(a *acker) {
		_ = a.channel.Nack(tag, false, true)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.settle(tag)
	})
}

func (w *walk) run() {
	i := w.intake
	require.NoError(w.t, i.start())
	go w.acknowledge()
	go w.take()
	for worker := range i.sub.consumer.settings.Concurrency {
		w.workers.Go(func() { w.work(worker) })
	}
	w.publishAll()
	if w.random.IntN(4) == 0 {
		w.broker.cancelAll() // which ends the session
	}
	close(i.stop)
	began := time.Now()
	<-i.taken
	assert.LessOrEqual(w.t, time.Since(began), quietTime, "it ends at once")
	w.check()
	w.workers.Wait()
	i.forwards.Wait()
	i.paused.Wait()
	close(i.acker.wake)
	_ = w.broker.Close()
}

// publishAll returns in the middle of something, or when all is handled.
func (w *walk) publishAll() {
	switch w.seed % 8 {
	case 0: // a suspect whose handler is stuck, before others
		m := modelMessage{redelivered: true, count: 9}
		w.broker.publish(m, m, m)
		if w.seed%16 == 0 {
			<-time.After(stuck / 2)
			return // while it is paused
		}
		<-time.After(stuck)
	case 1, 5: // suspects in a row behind others
		for n := range 30 {
			w.broker.publish(modelMessage{redelivered: n >= 20, count: int64(n) / 4})
		}
	}
	for range w.random.IntN(150) {
		w.publish()
	}
	if w.random.IntN(2) > 0 {
		began := time.Now()
		for !w.broker.isEmpty() && time.Since(began) < 24*time.Hour {
			<-time.After(time.Minute)
		}
		assert.True(w.t, w.broker.isEmpty(), "each message is handled in the end")
	}
}

// take is run, but for the count of what is played.
func (w *walk) take() {
	i := w.intake
	defer close(i.taken)
	defer close(i.out)
	defer w.turns.join()()
	for i.state != stateEnded {
		for e := i.next(); e != eventNone; {
			w.played[row{i.state, e}]++
			w.broker.begin(e)
			e = i.apply(e)
			w.broker.end()
		}
	}
}

// publish gives the broker a message after a while, or several at once.
func (w *walk) publish() {
	if w.random.IntN(3) == 0 {
		<-time.After(time.Duration(w.random.IntN(2000)) * time.Millisecond)
	}
	m := modelMessage{}
	if w.random.IntN(6) == 0 || w.seed%4 == 1 && w.random.IntN(2) == 0 {
		m.redelivered, m.count = true, int64(w.random.IntN(9))
	}
	m.crashed = w.random.IntN(30) == 0
	w.broker.publish(m)
}

func (w *walk) work(worker int) {
	i := w.intake
	for {
		select {
		case <-i.stop:
			return
		case d, ok := <-i.out:
			if !ok {
				return
			}
			i.ahead.pop()
			w.takes(d)
			i.sub.pace.begin(worker, len(d.Body), time.Now())
			w.handle(d)
			i.sub.pace.end(worker, time.Now())
			i.handed.Done()
		}
	}
}

// takes checks a message that a worker is given: it is given once, and a suspect is alone, unless a
// suspect had to stop waiting for a handler.
func (w *walk) takes(d received) {
	i := w.intake
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.False(w.t, w.given[d.DeliveryTag], "given twice")
	w.given[d.DeliveryTag] = true
	if isClosed(i.stop) {
		return // a worker that is given something now gives it back
	}
	for _, other := range w.inHand {
		if (i.isSuspect(&d) || i.isSuspect(&other)) && w.late() == 0 {
			assert.Fail(w.t, "a suspect is not alone", "%d beside %d", d.DeliveryTag, other.DeliveryTag)
		}
	}
	if !i.isSuspect(&d) {
		w.broker.checkPrefetch(d.DeliveryTag, i.usual.least)
	}
	w.inHand[d.DeliveryTag] = d
}

func (w *walk) late() int {
	handed := &w.intake.handed
	handed.mu.Lock()
	defer handed.mu.Unlock()

	return handed.late
}

// handle takes some time, and settles the message in one of the ways.
func (w *walk) handle(d received) {
	i, tag := w.intake, d.DeliveryTag
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.inHand, tag)
	}()
	if isClosed(i.stop) {
		w.requeue(tag)
		return
	}
	random := rand.New(rand.NewPCG(w.seed, tag))
	took := time.Duration(random.IntN(50)) * time.Millisecond
	switch random.IntN(25) {
	case 0:
		took *= 60
	case 1:
		took *= 500
	case 2, 3, 4:
		if w.seed%4 == 0 {
			took *= 20_000
		}
	}
	if w.seed%8 == 0 && tag == 1 {
		took = stuck
	} else if w.seed%4 == 1 && i.isSuspect(&d) {
		took = time.Duration(7+random.IntN(2)) * time.Second // their line takes longer than others can wait
	}
	<-time.After(took)
	ack := func() {
		w.broker.acks(tag)
		i.acker.ack(tag)
	}
	switch random.IntN(10) {
	case 0:
		w.requeue(tag)
	case 1:
		i.forwards.Add(1)
		go func() {
			defer i.forwards.Done()
			<-time.After(time.Duration(random.IntN(3000)) * time.Millisecond)
			ack()
		}()
	case 2:
		if i.queue.DeadLettersOf == "" {
			ack()
			return
		}
		i.acker.notify()
		i.paused.Add(1)
		go func() {
			defer i.paused.Done()
			<-time.After(time.Minute)
			w.requeue(tag)
		}()
	default:
		ack()
	}
}

// check looks at what an intake leaves: each delivery is settled, in a worker's hands or returned,
// and in one of these only; nobody has a turn.
func (w *walk) check() {
	i := w.intake
	for d := range i.out {
		assert.Fail(w.t, "left behind", "%d", d.DeliveryTag)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	returned := map[uint64]bool{}
	for _, d := range i.returned {
		assert.False(w.t, returned[d.DeliveryTag], "returned twice")
		assert.False(w.t, w.given[d.DeliveryTag], "returned and handed out")
		returned[d.DeliveryTag] = true
	}
	for tag := range w.broker.open() {
		assert.True(w.t, returned[tag] || w.given[tag], "%d is lost until the channel closes", tag)
	}
	w.turns.mu.Lock()
	defer w.turns.mu.Unlock()
	assert.False(w.t, w.turns.taken, "a turn is kept")
	assert.Empty(w.t, w.turns.waiting)
	assert.Zero(w.t, w.turns.members)
}

// modelBroker is a channel of a broker that counts deliveries.
type modelBroker struct {
	t       *testing.T
	latency time.Duration // of a delivery

	mu        sync.Mutex
	ready     []modelMessage
	prefetch  int
	last      uint64
	consumers map[string]*modelConsumer
	unsettled map[uint64]*modelDelivery
	acked     map[uint64]bool // by a worker's word
	event     event           // that is being carried out
	before    uint64          // last when that began
	cleared   map[uint64]bool // came to a consumer that was cancelled for a suspect
	full      uint64          // last when a consumer began that has more than one message at a time
	isClosed  bool
}

type modelMessage struct {
	redelivered, crashed bool
	count                int64
}

type modelConsumer struct {
	deliveries  chan amqp091.Delivery
	prefetch    int
	open        int
	isCancelled bool
}

type modelDelivery struct {
	modelMessage
	consumer *modelConsumer
	hasCome  bool
}

func (b *modelBroker) lock() func() {
	b.mu.Lock()
	return b.mu.Unlock
}

func (b *modelBroker) publish(m ...modelMessage) {
	defer b.lock()()
	b.ready = append(b.ready, m...)
	b.deliver()
}

// deliver sends what the prefetches leave room for.
func (b *modelBroker) deliver() {
	for _, c := range b.consumers {
		for !c.isCancelled && c.open < c.prefetch && len(b.ready) > 0 {
			b.last++
			d := &modelDelivery{modelMessage: b.ready[0], consumer: c}
			b.ready, b.unsettled[b.last], c.open = b.ready[1:], d, c.open+1
			delivery := amqp091.Delivery{DeliveryTag: b.last, Redelivered: d.redelivered,
				Headers: amqp091.Table{"x-delivery-count": d.count}}
			if d.crashed {
				delivery.Headers["amqpretry-queue"] = "q"
				delivery.Headers["amqpretry-history"] = `[{"reason":"crashed"}]`
			}
			if b.latency == 0 {
				d.hasCome = true
				c.deliveries <- delivery
				continue
			}
			time.AfterFunc(b.latency+time.Duration(b.last), func() { // in this order
				defer b.lock()()
				if !c.isCancelled {
					d.hasCome = true
					c.deliveries <- delivery
				}
			})
		}
	}
}

func (b *modelBroker) Qos(prefetch, _ int, _ bool) error {
	defer b.lock()()
	b.prefetch = prefetch

	return nil
}

func (b *modelBroker) Consume(_, tag string, _, _, _, _ bool, _ amqp091.Table) (<-chan amqp091.Delivery, error) {
	defer b.lock()()
	c := &modelConsumer{deliveries: make(chan amqp091.Delivery, 1000), prefetch: b.prefetch}
	assert.NotContains(b.t, b.consumers, tag, "a tag is used again")
	b.consumers[tag] = c
	if b.prefetch > 1 {
		b.full = b.last
	}
	b.deliver()

	return c.deliveries, nil
}

// Cancel takes back what is on its way, which counts.
func (b *modelBroker) Cancel(tag string, _ bool) error {
	defer b.lock()()
	c := b.consumers[tag]
	if c.isCancelled {
		return nil
	}
	c.isCancelled = true
	close(c.deliveries)
	for tag, d := range b.unsettled {
		if d.consumer == c && !d.hasCome {
			assert.NotContains(b.t, []event{eventHealthy, eventMisfit}, b.event,
				"a consumer is replaced while a message is on its way to it")
			b.requeue(tag)
		}
	}

	return nil
}

func (b *modelBroker) cancelAll() {
	for tag := range b.consumers {
		_ = b.Cancel(tag, false)
	}
}

func (b *modelBroker) requeue(tag uint64) {
	m := b.settle(tag).modelMessage
	m.redelivered = true
	m.count++
	b.ready = append([]modelMessage{m}, b.ready...)
}

func (b *modelBroker) settle(tag uint64) *modelDelivery {
	d := b.unsettled[tag]
	require.NotNil(b.t, d, "%d is settled twice", tag)
	d.consumer.open--
	delete(b.unsettled, tag)

	return d
}

func (b *modelBroker) Ack(tag uint64, multiple bool) error {
	defer b.lock()()
	for other := range b.unsettled {
		if other == tag || multiple && other < tag {
			assert.True(b.t, b.acked[other], "%d is acknowledged, and not handled", other)
			b.settle(other)
		}
	}
	b.deliver()

	return nil
}

func (b *modelBroker) Nack(tag uint64, _, _ bool) error {
	defer b.lock()()
	assert.False(b.t, b.acked[tag], "%d is given back, and handled", tag)
	b.requeue(tag)
	b.deliver()

	return nil
}

func (b *modelBroker) Reject(tag uint64, requeue bool) error { return b.Nack(tag, false, requeue) }

func (b *modelBroker) Close() error {
	defer b.lock()()
	b.isClosed = true

	return nil
}

func (b *modelBroker) IsClosed() bool {
	defer b.lock()()

	return b.isClosed
}

func (b *modelBroker) acks(tag uint64) {
	defer b.lock()()
	b.acked[tag] = true
}

func (b *modelBroker) isEmpty() bool {
	defer b.lock()()

	return len(b.ready)+len(b.unsettled) == 0
}

func (b *modelBroker) begin(e event) {
	defer b.lock()()
	b.event, b.before = e, b.last
}

func (b *modelBroker) isClearing() bool { return b.event == eventAmong || b.event == eventUnsettled }

func (b *modelBroker) end() {
	defer b.lock()()
	for tag := b.before; b.isClearing() && tag <= b.last; tag++ {
		b.cleared[tag] = true
	}
	b.event = eventNone
}

// open are the deliveries that have come and are not settled.
func (b *modelBroker) open() map[uint64]*modelDelivery {
	defer b.lock()()
	open := maps.Clone(b.unsettled)
	maps.DeleteFunc(open, func(_ uint64, d *modelDelivery) bool { return !d.hasCome })

	return open
}

// checkPrefetch: a message of a consumer with prefetch 1 is handed out when one with the full
// prefetch has begun.
func (b *modelBroker) checkPrefetch(tag uint64, full int) {
	defer b.lock()()
	if d := b.unsettled[tag]; full > 1 && d.consumer.prefetch == 1 && !b.isClearing() && !b.cleared[tag] {
		assert.GreaterOrEqual(b.t, b.full, tag, "%d is handed out before the full prefetch is there", tag)
	}
}
