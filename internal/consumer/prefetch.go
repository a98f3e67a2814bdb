package consumer

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// The prefetch of a session's consumers follows the handlers: as many as there are workers, and what they take within
// second. A fixed one is either too small, so that handlers wait for the broker, and one delivery that is held stops
// the queue; or it hoards: what waits behind a slow handler could be in the hands of another process, until the broker
// loses its patience (consumer_timeout) and delivers all of it again.
//
// A consumer's prefetch cannot change: the next consumer on the same channel has another. RabbitMQ delivers again what
// is on its way to a consumer of a quorum queue that is cancelled, so a consumer is replaced only while all of its
// prefetch is used up, see acker.hold.

// sizes are what a prefetch moves between.
type sizes struct {
	least, most int
	// held is how many deliveries may be held while room is made for others. Zero for none: then nothing is replaced.
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
	// adaptiveMost is the largest prefetch of those that adapt, or twice the concurrency where that is more.
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
	// patience is how long messages wait for handlers before they go back to a queue that has other consumers, and
	// lastPatience that before they go back in any case: well below the broker's consumer timeout.
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

// changes tells whether a prefetch ever changes.
func (z sizes) changes() bool { return z.least < z.most || z.held > 0 }

// start is the prefetch to begin with. It is zero when each worker still has a message whose delivery is gone.
func (z sizes) start(p *pace) int {
	if z.givesBack {
		return min(z.least, p.workers())
	}

	return z.least
}

// want is the prefetch for handlers at this pace.
func (z sizes) want(p *pace) int { return max(1, z.start(p)) + p.within(second, z.most-z.least) }

// grown is the prefetch after one that has seen so many calls end.
func (z sizes) grown(present, start, calls, want int) int {
	switch {
	case present < start:
		return start
	case want >= 2*present && calls >= present:
		return min(want, growth*present)
	default:
		return present
	}
}

// standing is the prefetch of a consumer beside those whose deliveries are all held; zero if there is no room for more.
func (z sizes) standing(held, want, soon int) int {
	return max(0, min(max(want, min(held, soon)), z.held-held))
}

// keepTicking makes the next tick come.
func (s *session) keepTicking() {
	if !s.isTicking && (s.sizes.changes() || !s.wellAt.IsZero()) {
		s.isTicking = true
		s.ticks.Reset(tick)
	}
}

// onTick looks after a consumer whose prefetch may be too large or too small.
func (s *session) onTick(c consumption) (consumption, bool) {
	now := time.Now()
	if now.After(s.wellAt) {
		s.sizes, s.wellAt = s.usual, time.Time{}
	}
	idle, free := s.sub.pace.look(now)
	if c.deliveries == nil { // given up
		prefetch, careful := s.initial()
		if idle == 0 || prefetch == 0 {
			s.keepTicking()
			return c, true
		}

		return s.goOn(prefetch, careful)
	}
	if !s.acker.isIdle() {
		s.keepTicking()
	}
	waited := s.ahead.oldest(now)
	if idle == 0 && waited > patience && s.sizes.givesBack && s.isWanted(now, waited, c.careful) {
		return s.giveBack(c)
	}
	if c.careful { // only the message that comes next ends that
		return c, true
	}

	held, want := s.forwards.value()+s.paused.value(), s.sizes.want(s.sub.pace)
	if c.still++; held == 0 || idle == 0 || waited > 0 || !s.acker.hasOpen(c.prefetch) {
		c.still = 0
	}
	if held > 0 || free == 0 || 2*want > c.prefetch {
		c.slow = time.Time{}
	} else if c.slow.IsZero() {
		c.slow = now
	}

	switch {
	case c.still >= stillTicks:
		if room := s.sizes.standing(held, want, s.sub.pace.within(heldAhead, s.sizes.most)); room > 0 {
			return s.replace(c, room, 0)
		}

		return c, true
	case !c.slow.IsZero() && now.Sub(c.slow) >= second:
		return s.resize(c, want)
	default:
		return s.resize(c, s.grown(c))
	}
}

// grown is the prefetch of a consumer that may be too small. It stays where deliveries of earlier consumers are still
// waiting for handlers, and where those that are held leave no room.
func (s *session) grown(c consumption) int {
	start := s.sizes.start(s.sub.pace)
	if c.prefetch >= max(start, s.sizes.most) {
		return c.prefetch
	}
	grown := s.sizes.grown(c.prefetch, start, s.sub.pace.ended()-c.calls, s.sizes.want(s.sub.pace))
	held := s.forwards.value() + s.paused.value()
	if s.acker.older() > held {
		grown = min(grown, max(c.prefetch, start))
	}
	if held > 0 && s.sizes.held > 0 {
		grown = min(grown, max(c.prefetch, s.sizes.held-held))
	}

	return grown
}

// resize gives the consumer another prefetch.
func (s *session) resize(c consumption, prefetch int) (consumption, bool) {
	if prefetch == c.prefetch {
		return c, true
	}

	return s.replace(c, prefetch, 0)
}

// grow gives the consumer the prefetch that quick handlers need. They are done with a part of the present one before the
// rest of it has come over a long way, so it would hardly ever be used up: acknowledgements wait for that, now and then.
// Nothing may wait to be handed out.
func (s *session) grow(c consumption) (consumption, bool) {
	prefetch := s.grown(c)
	if prefetch <= c.prefetch || time.Since(s.filled) < second {
		return c, true
	}
	s.filled = time.Now()

	return s.replace(c, prefetch, quietTime)
}

// replace replaces the consumer when its prefetch is used up, which may take so long. Else a later try does.
func (s *session) replace(c consumption, prefetch int, wait time.Duration) (consumption, bool) {
	wasFull := false
	err := s.acker.hold(func() error {
		over := time.After(wait)
		for !s.acker.isFull(c.prefetch) {
			if wait == 0 || !s.fill(c, over) {
				return nil
			}
		}
		wasFull = true

		return s.channel.Cancel(c.tag, false)
	})
	if err != nil || !wasFull {
		return c, err == nil
	}
	for d := range c.deliveries { // of a broker that does not count as RabbitMQ does
		s.handOut(*s.receive(d))
	}
	if s.isStopped() {
		return c, false
	}
	s.sub.logger.Debug("Changed the prefetch to the speed of the handlers",
		watermill.LogFields{"prefetch": prefetch, "before": c.prefetch})

	return s.goOn(prefetch, false)
}

// fill takes one more delivery of a consumer that is to be replaced. It is false where none comes, or a suspect has,
// which is the next one then.
func (s *session) fill(c consumption, over <-chan time.Time) bool {
	select {
	case d, ok := <-c.deliveries:
		if !ok {
			return false
		}
		s.active.now()
		if s.came = s.receive(d); s.isSuspectNow(s.came, true) {
			return false
		}
		s.handOut(*s.came)
		s.came = nil

		return true
	case <-over:
		return false
	case <-s.stop:
		return false
	}
}

// isWanted tells whether what has waited for so long is to go back to its queue: others have nothing else to do. Where
// there are no others it stays, in its order. So do suspects where the broker would count that.
func (s *session) isWanted(now time.Time, waited time.Duration, suspects bool) bool {
	if waited > lastPatience {
		return true
	}
	if suspects && !s.countsLeft {
		return false
	}
	if s.answer == nil && now.Sub(s.asked) >= second {
		s.asked, s.answer = now, make(chan bool, 1)
		go func(answer chan<- bool) { answer <- s.othersAreIdle(s.queue.Name) }(s.answer)
	}
	select {
	case yes := <-s.answer:
		s.answer = nil
		return yes && now.Sub(s.asked) < 2*second // else it is no news any more
	default:
		return false
	}
}

// othersAreIdle asks the broker, which may take as long as the connection lives. The channel is one of its own, as a
// queue that is not available just now closes it.
func (s *session) othersAreIdle(name string) bool {
	channel, err := s.link.Channel()
	if err != nil {
		return false
	}
	defer channel.Close()
	queue, err := channel.QueueDeclarePassive(name, false, false, false, false, nil)

	return err == nil && queue.Messages == 0 && queue.Consumers > s.acker.consumers()
}

// giveBack gives what waits for handlers back to its queue. Nothing is consumed then until a handler is done.
func (s *session) giveBack(c consumption) (consumption, bool) {
	if s.channel.Cancel(c.tag, false) != nil {
		return c, false
	}
	waiting := s.takeBack()
	for d := range c.deliveries {
		waiting = append(waiting, *s.receive(d))
	}
	for _, d := range waiting {
		s.requeueOf(d.DeliveryTag)
	}
	s.keepTicking()
	s.sub.logger.Info("All handlers have been busy for long; requeued the messages that waited for them, and paused "+
		"consuming until a handler is free", watermill.LogFields{"messages": len(waiting)})

	return consumption{}, true
}
