package consumer

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// The prefetch of a session's consumers follows the handlers: as many as there are workers, and
// what they take within second. A fixed one is either too small, so that handlers wait for the
// broker, and one delivery that is held stops the queue; or it hoards: what waits behind a slow
// handler could be in the hands of another process, until the broker loses its patience
// (consumer_timeout) and delivers all of it again.
//
// A consumer's prefetch cannot change: the next consumer on the same channel has another. RabbitMQ
// delivers again what is on its way to a consumer of a quorum queue that is cancelled, so a
// consumer is replaced only while all of its prefetch is used up, see acker.hold.

// sizes are what a prefetch moves between.
type sizes struct {
	least, most int
	// held is how many deliveries may be held while room is made for others. Zero for none: then
	// nothing is replaced.
	held int
	// givesBack says that what waits for handlers that are stuck may go back to the queue.
	givesBack bool
}

// careful are those of a queue that may make trouble: one message at a time.
func (z sizes) careful() sizes {
	z.least, z.most = 1, 1

	return z
}

const (
	// adaptiveMost is the largest prefetch of those that adapt, or twice the concurrency where that
	// is more.
	adaptiveMost = 50
	// fixedMost is that of consumers which cannot be replaced.
	fixedMost = 20

	// second is for how long messages are delivered ahead.
	second = time.Second
	// growth is how much a prefetch grows at a time.
	growth = 8
	// stillTicks are how many ticks in turn a consumer has to stand still.
	stillTicks = 2
	// heldAhead is for how long messages are delivered ahead where others are held.
	heldAhead = 5 * time.Second

	// tick is how often a consumer is looked at while it has something in flight.
	tick = 250 * time.Millisecond
	// patience is how long messages wait for handlers before they go back to a queue that has other
	// consumers, and lastPatience that before they go back in any case: well below the broker's
	// consumer timeout.
	patience     = 10 * time.Second
	lastPatience = 5 * time.Minute
)

// sizesOf says what the prefetch of a queue's consumers moves between.
func sizesOf(settings *Settings, queue *Queue) sizes {
	fixed := settings.Prefetch
	replaced := !settings.Exclusive && !settings.SingleActive // else another process would take its place
	if fixed == 0 && !replaced {
		fixed = min(max(fixedMost, 2*settings.Concurrency), rabbitmq.MaxPrefetch)
	}
	z := sizes{least: fixed, most: fixed}
	if fixed == 0 {
		most := min(max(adaptiveMost, 2*settings.Concurrency), rabbitmq.MaxPrefetch)
		z = sizes{settings.Concurrency, most, most, !settings.Expires}
	}
	if queue.DeadLettersOf != "" && replaced {
		z.held = mostSetAside
	}

	return z
}

// changes reports whether a prefetch ever changes.
func (z sizes) changes() bool { return z.least < z.most || z.held > 0 }

// start is the prefetch to begin with. It is zero when each worker still has a message whose
// delivery is gone.
func (z sizes) start(p *pace) int {
	if z.givesBack {
		return min(z.least, p.workers())
	}

	return z.least
}

// want is the prefetch for handlers at this pace.
func (z sizes) want(p *pace) int { return max(1, z.start(p)) + p.within(second, z.most-z.least) }

// standing is the prefetch of a consumer beside those whose deliveries are all held; zero if there
// is no room for more.
func (z sizes) standing(held, want, soon int) int {
	return max(0, min(max(want, min(held, soon)), z.held-held))
}

// load is what a prefetch follows.
type load struct {
	now        time.Time
	idle, free int           // workers that have nothing to do, and those that are not stuck
	waited     time.Duration // of the oldest delivery that waits for a worker; zero if none does
	isUsed     bool          // all of the present prefetch
	held       int           // deliveries whose copies are not confirmed yet, or that are in a pause
	older      int           // deliveries of earlier consumers that are not settled
	calls      int           // that have ended since the consumer began

	start int // what to begin with
	want  int // what the handlers take within second
	soon  int // and within heldAhead
}

// fitting is the prefetch that a consumer should have at a tick; zero if it stays as it is.
func (c *consumption) fitting(z sizes, l load) int {
	if c.still++; l.held == 0 || l.idle == 0 || l.waited > 0 || !l.isUsed {
		c.still = 0
	}
	if l.held > 0 || l.free == 0 || 2*l.want > c.prefetch {
		c.slow = time.Time{}
	} else if c.slow.IsZero() {
		c.slow = l.now
	}

	prefetch := c.grown(z, l)
	switch {
	case c.still >= stillTicks: // also one of the same size: it does not count what is held
		return z.standing(l.held, l.want, l.soon)
	case !c.slow.IsZero() && l.now.Sub(c.slow) >= second:
		prefetch = l.want
	}
	if prefetch == c.prefetch {
		return 0
	}

	return prefetch
}

// grown is the prefetch of a consumer that may be too small: the one to begin with, then what the
// handlers want, in steps. It stays where deliveries of earlier consumers are still waiting for
// handlers, and where those that are held leave no room.
func (c *consumption) grown(z sizes, l load) int {
	grown := c.prefetch
	switch {
	case c.prefetch < l.start:
		grown = l.start
	case c.prefetch < z.most && l.want >= 2*c.prefetch && l.calls >= c.prefetch:
		grown = min(l.want, growth*c.prefetch)
	}
	if l.older > l.held {
		grown = min(grown, max(c.prefetch, l.start))
	}
	if l.held > 0 && z.held > 0 {
		grown = min(grown, max(c.prefetch, z.held-l.held))
	}

	return grown
}

// load is the present one, without what only a tick looks at.
func (i *intake) load(now time.Time) load {
	pace := i.sub.pace

	return load{
		now: now, held: i.forwards.value() + i.paused.value(), older: i.acker.older(),
		calls: pace.ended() - i.consumer.calls,
		start: i.sizes.start(pace), want: i.sizes.want(pace), soon: pace.within(heldAhead, i.sizes.most),
	}
}

// grown is the prefetch that the handlers need at least.
func (i *intake) grown() int {
	if i.consumer.prefetch >= max(i.sizes.start(i.sub.pace), i.sizes.most) {
		return i.consumer.prefetch
	}

	return i.consumer.grown(i.sizes, i.load(time.Now()))
}

// keepTicking makes the next tick come.
func (i *intake) keepTicking() {
	if !i.isTicking && (i.sizes.changes() || !i.wellAt.IsZero()) {
		i.isTicking = true
		i.ticks.Reset(tick)
	}
}

// onTick looks after a consumer whose prefetch may be too large or too small.
func (i *intake) onTick(now time.Time) event {
	if now.After(i.wellAt) {
		i.sizes, i.wellAt = i.usual, time.Time{}
	}
	idle, free := i.sub.pace.look(now)
	if i.state == statePaused {
		if idle > 0 && i.initial() > 0 {
			return eventIdle
		}
		i.keepTicking()

		return eventNone
	}
	if !i.acker.isIdle() {
		i.keepTicking()
	}
	waited := i.ahead.oldest(now)
	if idle == 0 && waited > patience && i.sizes.givesBack && i.isWanted(now, waited) {
		return eventBacklog
	}
	if i.state == stateStarting { // only the message that comes next ends that
		return eventNone
	}

	l := i.load(now)
	l.idle, l.free, l.waited, l.isUsed = idle, free, waited, i.acker.hasOpen(i.consumer.prefetch)
	if i.wanted = i.consumer.fitting(i.sizes, l); i.wanted == 0 {
		return eventNone
	}

	return eventMisfit
}

// fit gives the consumer the prefetch that the handlers need at least.
func (i *intake) fit() event {
	if prefetch := i.grown(); prefetch != i.consumer.prefetch {
		return i.replace(prefetch, 0)
	}

	return eventNone
}

// refit gives it the one that the last tick has found.
func (i *intake) refit() event { return i.replace(i.wanted, 0) }

// grow gives the consumer the prefetch that quick handlers need. They are done with a part of the
// present one before the rest of it has come over a long way, so it would hardly ever be used up:
// acknowledgements wait for that, now and then. Nothing may wait to be handed out.
func (i *intake) grow() event {
	prefetch := i.grown()
	if prefetch <= i.consumer.prefetch || time.Since(i.filled) < second {
		return eventNone
	}
	i.filled = time.Now()

	return i.replace(prefetch, quietTime)
}

// replace replaces the consumer when its prefetch is used up, which may take so long. Else a later
// try does.
func (i *intake) replace(prefetch int, wait time.Duration) event {
	before, wasFull := i.consumer, false
	err := i.acker.hold(func() error {
		over := time.After(wait)
		for !i.acker.isFull(before.prefetch) {
			if wait == 0 || !i.fill(over) {
				return nil
			}
		}
		wasFull = true

		return i.channel.Cancel(before.tag, false)
	})
	switch {
	case err != nil:
		return eventOver
	case !wasFull:
		return eventNone
	}
	for _, d := range i.drain() { // of a broker that does not count as RabbitMQ does
		i.pass(d)
	}
	if isClosed(i.stop) {
		return eventOver
	}
	i.sub.logger.Debug("Changed the prefetch to the speed of the handlers",
		watermill.LogFields{"prefetch": prefetch, "before": before.prefetch})

	return i.beginWith(prefetch)
}

// fill takes one more delivery of a consumer that is to be replaced. It is false where none comes,
// or a suspect has, which is the next one then.
func (i *intake) fill(over <-chan time.Time) bool {
	select {
	case d, ok := <-i.consumer.deliveries:
		if !ok {
			return false
		}
		i.sub.active.now()
		if i.came = i.receive(d); i.isSuspectNow(i.came, true) {
			return false
		}
		i.pass(*i.came)
		i.came = nil

		return true
	case <-over:
		return false
	case <-i.stop:
		return false
	}
}

// isWanted reports whether what has waited for so long is to go back to its queue: others have
// nothing else to do. Where there are no others it stays, in its order. So do suspects where the
// broker would count that.
func (i *intake) isWanted(now time.Time, waited time.Duration) bool {
	if waited > lastPatience {
		return true
	}
	if i.state == stateStarting && i.suspectsFrom != never && !i.countsLeft {
		return false
	}
	if i.answer == nil && now.Sub(i.asked) >= second {
		i.asked, i.answer = now, make(chan bool, 1)
		go func(answer chan<- bool) { answer <- i.othersAreIdle() }(i.answer)
	}
	select {
	case yes := <-i.answer:
		i.answer = nil
		return yes && now.Sub(i.asked) < 2*second // else it is no news any more
	default:
		return false
	}
}

// othersAreIdle asks the broker, which may take as long as the connection lives.
func othersAreIdle(link *connection.Link, name string, own func() int) bool {
	queue, err := askFor(link, name)

	return err == nil && queue.Messages == 0 && queue.Consumers > own()
}

// giveBack gives what waits for handlers back to its queue. Nothing is consumed then until a
// handler is done.
func (i *intake) giveBack() event {
	if i.channel.Cancel(i.consumer.tag, false) != nil {
		return eventOver
	}
	waiting := append(i.takeBack(), i.drain()...)
	i.consumer = consumption{}
	for _, d := range waiting {
		i.requeueOf(d.DeliveryTag)
	}
	i.keepTicking()
	i.sub.logger.Info("All handlers have been busy for long; requeued the messages that waited for them, and paused "+
		"consuming until a handler is free", watermill.LogFields{"messages": len(waiting)})

	return eventNone
}
