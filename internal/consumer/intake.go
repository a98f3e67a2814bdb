package consumer

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

// intake takes deliveries from the broker and passes them on to the workers, through one consumer
// of its session after the other. It is a state machine, see states.go; what it does on its way is
// in suspect.go and prefetch.go. All of it runs in one goroutine, but for the workers' takes and
// dones.
type intake struct {
	*session

	state    state
	pauses   atomic.Bool // there is no consumer in this state
	consumer consumption
	tag      string
	consumed int // how many consumers there were

	hand   *received  // the delivery that next has reported
	came   *received  // the next one that next reports; nil for none
	line   []received // suspects of a consumer that was cancelled
	lineAt time.Time  // when they were put in line

	out    chan received // to the workers
	ahead  ahead         // of those in out
	handed tally         // handed out and not handled yet

	taken    chan struct{} // closed when it has ended
	returned []received    // delivered and handed to nobody; read after taken

	suspectsFrom int64 // x-delivery-count; never for none

	sizes, usual  sizes
	wellAt        time.Time // when sizes are to be the usual ones; zero if they are
	wanted        int       // the prefetch that the last tick has found
	filled        time.Time // when acknowledgements waited last for the prefetch to be used up
	ticks         *time.Timer
	isTicking     bool
	othersAreIdle func() bool // asks the broker, as long as that takes
	asked         time.Time   // when it was asked
	answer        chan bool   // to that; nil if it is not asked
}

// consumption is one basic.consume. Without deliveries there is none.
type consumption struct {
	tag        string
	deliveries <-chan amqp091.Delivery
	prefetch   int

	calls int       // that had ended when it began
	slow  time.Time // since when its prefetch is too large; zero if it is not
	still int       // ticks for which it has stood still
}

// received is a delivery with the time of its arrival: it may be handed out much later, behind
// others that were delivered ahead of it.
type received struct {
	amqp091.Delivery
	at time.Time
}

func newIntake(s *session, link *connection.Link) *intake {
	settings := &s.sub.consumer.settings
	usual := sizesOf(settings, s.queue)
	// Two consumers may have theirs in it: one that is replaced, and the next. Behind that the
	// stamps of a huge prefetch that is fixed are late, which costs less than its memory.
	room := 2 * usual.most
	if !usual.givesBack {
		room = min(room, 1024)
	}
	i := &intake{
		session: s, tag: settings.Consumer, out: make(chan received, room), taken: make(chan struct{}),
		suspectsFrom: suspectsFrom(&s.queue.Policy, link.Version()),
		sizes:        usual, usual: usual, ticks: time.NewTimer(tick),
		othersAreIdle: func() bool { return othersAreIdle(link, s.queue.Name, s.acker.consumers) },
	}
	i.ticks.Stop()
	if i.tag == "" {
		i.tag = "watermill-retry-" + watermill.NewShortUUID()
	}
	isKept := settings.Exclusive || settings.SingleActive // else another process would take its place
	if s.sub.alone && !isKept {
		i.sizes, i.wellAt = usual.careful(), time.Now().Add(carefulFor)
	}
	if isKept || s.queue.isFailed() { // whose messages run no handler, and carry the counts of their main queue
		i.suspectsFrom = never
	}

	return i
}

// start begins to consume, if a worker could take a message.
func (i *intake) start() (err error) {
	prefetch := i.initial()
	if prefetch == 0 {
		i.state = statePaused
		i.pauses.Store(true)
		i.keepTicking()

		return nil
	}
	i.state = stateStarting

	return i.consume(prefetch)
}

// initial is the prefetch to begin with: 1 where the first messages may be suspects, 0 while no
// worker could take one.
func (i *intake) initial() int {
	prefetch := i.sizes.start(i.sub.pace)
	if i.suspectsFrom != never {
		prefetch = min(prefetch, 1)
	}

	return prefetch
}

// run takes deliveries until the broker delivers no more or the subscription closes. What nobody is
// given then is in returned.
func (i *intake) run() {
	defer close(i.taken)
	defer close(i.out)
	defer i.ticks.Stop()
	if i.suspectsFrom != never {
		defer i.sub.consumer.settings.Turns.join()()
	}

	for i.state != stateEnded {
		for e := i.next(); e != eventNone; {
			e = i.apply(e)
		}
	}
}

// apply carries out what an event leads to, and returns what comes of that.
func (i *intake) apply(e event) (result event) {
	next, actions := step(i.state, e)
	for _, a := range actions {
		if result = a(i); result == eventOver {
			break
		}
	}
	if next != i.state {
		i.state = next
		i.pauses.Store(next == statePaused || next == stateLine)
	}

	return result
}

// next waits for what comes next.
func (i *intake) next() event {
	switch {
	case isClosed(i.stop):
		return eventOver
	case i.state == stateLine:
		return i.nextInLine()
	case i.came != nil:
		i.hand, i.came = i.came, nil
		return i.kind()
	}
	select {
	case d, ok := <-i.consumer.deliveries:
		if !ok {
			return eventOver
		}
		i.sub.active.now()
		i.hand = i.receive(d)

		return i.kind()
	case <-i.ticks.C:
		i.isTicking = false
		return i.onTick(time.Now())
	case <-i.stop:
		return eventOver
	}
}

// kind is the event that the delivery at hand is.
func (i *intake) kind() event {
	switch {
	case !i.isSuspectNow(i.hand, i.state == stateOpen):
		return eventHealthy
	case i.consumer.prefetch == 1:
		return eventSuspect
	default:
		return eventAmong
	}
}

func (i *intake) receive(d amqp091.Delivery) *received {
	i.acker.arrived(d.DeliveryTag)
	i.keepTicking()

	return &received{d, time.Now()}
}

// consume begins to consume with this prefetch.
//
// Each consumer of a channel has a tag of its own: a broker counts redeliveries wrong when one is
// used again while deliveries of the consumer before are not settled.
//
// Upstream: a consumer tag that is used again spoils the counts; rabbitmq/rabbitmq-server#9158
// (another effect), measured; RabbitMQ 3.10; TestKillersNeighboursAreNotCharged; remove when
// RabbitMQ 3.13 is no longer supported.
func (i *intake) consume(prefetch int) error {
	settings := &i.sub.consumer.settings
	i.consumer = consumption{}

	if err := i.channel.Qos(prefetch, 0, false); err != nil {
		return err
	}
	i.consumed++
	tag := i.tag
	if i.consumed > 1 {
		tag = i.tagWith(strconv.Itoa(i.consumed))
	}
	i.acker.begin()
	i.sub.active.now()
	deliveries, err := i.channel.Consume(i.queue.Name, tag, false, settings.Exclusive, settings.NoLocal,
		settings.NoWait, settings.Arguments)
	if err == nil {
		i.consumer = consumption{tag: tag, deliveries: deliveries, prefetch: prefetch, calls: i.sub.pace.ended()}
	}

	return err
}

// tagWith is the tag with a suffix. A longer one than AMQP has room for would close the connection.
func (i *intake) tagWith(suffix string) string {
	const most = 255

	return i.tag[:min(len(i.tag), most-1-len(suffix))] + "." + suffix
}

// begin consumes after the consumer before has been cancelled.
func (i *intake) begin() event { return i.beginWith(max(1, i.initial())) }

func (i *intake) beginWith(prefetch int) event {
	defer i.sub.reportNoAnswer("Cannot resume consuming yet")()
	err := i.consume(prefetch)
	if err == nil {
		return eventNone
	}
	if !i.isGone() {
		i.sub.logger.Error("Cannot resume consuming", cannotConsume(i.queue.Name, err), nil)
		_ = i.channel.Close()
	}

	return eventOver
}

// handOut passes the delivery at hand on to the workers.
func (i *intake) handOut() event {
	d := *i.hand
	i.hand = nil
	i.pass(d)

	return eventNone
}

// pass passes a delivery on to the workers.
func (i *intake) pass(d received) {
	i.handed.Add(1)
	i.ahead.push(d.at)
	select {
	case i.out <- d:
	case <-i.stop:
		i.handed.Done()
		i.returned = append(i.returned, d)
	}
}

// end cancels the consumer, should it still be there, and collects what was delivered and not
// handed out.
func (i *intake) end() event {
	for _, d := range []*received{i.hand, i.came} {
		if d != nil {
			i.returned = append(i.returned, *d)
		}
	}
	i.returned = append(i.returned, i.line...)
	if i.isGone() || i.consumer.deliveries == nil {
		return eventNone
	}
	_ = i.channel.Cancel(i.consumer.tag, false) // again, it may be: the broker answers all the same
	i.returned = append(append(i.returned, i.drain()...), i.takeBack()...)

	return eventNone
}

// drain is what a cancelled consumer has left.
func (i *intake) drain() (left []received) {
	for d := range i.consumer.deliveries {
		left = append(left, *i.receive(d))
	}

	return left
}

// takeBack is what was handed out and no worker has.
func (i *intake) takeBack() (waiting []received) {
	for {
		select {
		case d := <-i.out:
			i.ahead.pop()
			i.handed.Done()
			waiting = append(waiting, d)
		default:
			return waiting
		}
	}
}

// ahead are the times at which those have arrived that wait for a worker.
type ahead struct {
	mu    sync.Mutex
	times []time.Time
}

func (a *ahead) push(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.times = append(a.times, at)
}

func (a *ahead) pop() {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.times = a.times[1:]
}

// oldest is how long the oldest has waited: zero if there is none.
func (a *ahead) oldest(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()

	if len(a.times) == 0 {
		return 0
	}

	return max(1, now.Sub(a.times[0]))
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
