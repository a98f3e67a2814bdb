package consumer

import (
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
)

// consumption is one basic.consume of a session. Without deliveries there is none: it has been given up until a worker
// is idle.
type consumption struct {
	tag        string
	deliveries <-chan amqp091.Delivery
	prefetch   int

	careful bool      // what comes may have killed a process, see suspect.go
	calls   int       // that had ended when it began
	slow    time.Time // since when its prefetch is too large; zero if it is not
	still   int       // ticks for which it has stood still
}

// received is a delivery with the time of its arrival: it may be handed out much later, behind others that were
// delivered ahead of it.
type received struct {
	amqp091.Delivery
	at time.Time
}

// initial is the prefetch to begin with: 1 where the first messages may be suspects, 0 while no worker could take one.
func (s *session) initial() (prefetch int, careful bool) {
	careful = s.suspectsFrom != never
	if prefetch = s.sizes.start(s.sub.pace); careful {
		prefetch = min(prefetch, 1)
	}

	return prefetch, careful
}

// consume begins to consume with this prefetch.
//
// Each consumer of a channel has a tag of its own: RabbitMQ 3.10 counts redeliveries wrong when one is used again while
// deliveries of the consumer before are not settled.
func (s *session) consume(prefetch int, careful bool) (consumption, error) {
	settings := s.sub.consumer.settings

	if err := s.channel.Qos(prefetch, 0, false); err != nil {
		return consumption{}, err
	}
	s.consumed++
	tag := s.tag
	if s.consumed > 1 {
		tag = s.tagWith(strconv.Itoa(s.consumed))
	}
	s.acker.begin()
	s.sub.active.now()
	deliveries, err := s.channel.Consume(s.queue.Name, tag, false, settings.Exclusive, settings.NoLocal,
		settings.NoWait, settings.Arguments)
	if err != nil {
		return consumption{}, err
	}

	return consumption{tag: tag, deliveries: deliveries, prefetch: prefetch, careful: careful,
		calls: s.sub.pace.ended()}, nil
}

// tagWith is the tag with a suffix. A longer one than AMQP has room for would close the connection.
func (s *session) tagWith(suffix string) string {
	const most = 255

	return s.tag[:min(len(s.tag), most-1-len(suffix))] + "." + suffix
}

// take is the life of a session's consumers: it takes deliveries from the broker and passes them on to the workers,
// until the broker delivers no more or the subscription closes. What nobody is given then is in returned.
func (s *session) take(c consumption) {
	defer close(s.taken)
	defer close(s.deliveries)
	defer s.ticks.Stop()
	if s.suspectsFrom != never {
		defer s.sub.consumer.settings.Turns.join()()
	}

	for going := true; going; {
		d, ok := s.next(c)
		switch {
		case !ok:
			going = false
		case d == nil:
			c, going = s.onTick(c)
		case !s.isSuspectNow(d, !c.careful):
			c.careful = false
			// Before it is handed out: its acknowledgement would make room for another.
			c, going = s.resize(c, s.grown(c))
			s.handOut(*d)
			if going {
				c, going = s.grow(c)
			}
		case c.prefetch == 1: // nothing comes beside it
			if c.careful = true; !s.handOutAlone(*d) {
				c, going = s.again(c, nil)
			}
		default:
			c, going = s.again(c, d)
		}
	}

	s.end(c)
}

// next waits for a delivery. It is false when there will be none, and nil at a tick.
func (s *session) next(c consumption) (*received, bool) {
	if d := s.came; d != nil {
		s.came = nil
		return d, true
	}
	select {
	case d, ok := <-c.deliveries:
		if !ok {
			return nil, false
		}
		s.active.now()

		return s.receive(d), true
	case <-s.ticks.C:
		s.isTicking = false
		return nil, true
	case <-s.stop:
		return nil, false
	}
}

func (s *session) receive(d amqp091.Delivery) *received {
	s.acker.arrived(d.DeliveryTag)
	s.keepTicking()

	return &received{d, time.Now()}
}

// again replaces the consumer by a careful one. suspect is the one that was delivered to it, if there is one: it is
// handed out alone. Others that come before the cancel are given back, or handed out one after the other.
func (s *session) again(c consumption, suspect *received) (consumption, bool) {
	stopped := func() (consumption, bool) {
		if suspect != nil {
			s.returned = append(s.returned, *suspect)
		}

		return c, false
	}
	if s.isStopped() {
		return stopped()
	}
	came, err := s.cancelled(c)
	if err != nil {
		s.returned = append(s.returned, came...)
		return stopped()
	}
	var others []received
	for _, delivery := range came {
		switch d := &delivery; {
		case !s.isSuspectNow(d, !c.careful):
			s.handOut(*d)
		case suspect == nil:
			suspect = d
		case s.mayGoBack(d):
			_ = s.acker.requeue(d.DeliveryTag) // with the channel it goes back as well
		default:
			others = append(others, *d)
		}
	}
	if s.isStopped() {
		s.returned = append(s.returned, others...)
		return stopped()
	}
	began := time.Now()
	settled := suspect == nil || s.handOutAlone(*suspect)
	for _, d := range others {
		switch {
		case s.isStopped():
			s.returned = append(s.returned, d)
		case settled && time.Since(began) < patience:
			settled = s.handOutAlone(d)
		default:
			_ = s.acker.requeue(d.DeliveryTag)
		}
	}

	// The broker counts the prefetch of each consumer by itself, and what the one before it has left unsettled is held
	// here.
	limit := func() int { return s.usual.most + s.paused.value() }
	if !s.acker.waitBelow(limit, s.stop) || s.isStopped() {
		return c, false
	}

	return s.goOn(1, true)
}

// cancelled cancels a consumer, and gives what was delivered to it and not taken yet.
func (s *session) cancelled(c consumption) (came []received, err error) {
	err = s.acker.hold(func() error {
		came = s.gather(c, time.After(quietTime))
		return s.channel.Cancel(c.tag, false)
	})
	if err != nil {
		return came, err
	}
	for d := range c.deliveries {
		came = append(came, *s.receive(d))
	}

	return came, nil
}

// gather takes what comes until a consumer's prefetch is used up, while acknowledgements wait: the broker delivers
// again, and counts, what is on its way to a consumer of a quorum queue when that is cancelled. It does not take long:
// where messages come slowly, none is likely to be on its way. And it ends with a suspect. After a death these come in a
// row, and each would be given back, or charged with the next death.
func (s *session) gather(c consumption, over <-chan time.Time) (came []received) {
	for !s.acker.isFull(c.prefetch) {
		select {
		case d, ok := <-c.deliveries:
			if !ok {
				return came
			}
			came = append(came, *s.receive(d))
			if s.isSuspectNow(&came[len(came)-1], !c.careful) {
				return came
			}
		case <-over:
			return came
		case <-s.stop:
			return came
		}
	}

	return came
}

// quietTime is how long a prefetch takes to be used up where messages wait in the queue, with a broker that is slow.
const quietTime = 250 * time.Millisecond

// goOn consumes after the consumer before has been cancelled.
func (s *session) goOn(prefetch int, careful bool) (consumption, bool) {
	defer s.reportNoAnswer()()
	next, err := s.consume(prefetch, careful)
	if err != nil {
		if !s.isGone() {
			s.sub.logger.Error("Cannot resume consuming", cannotConsume(s.queue.Name, err), nil)
			_ = s.channel.Close()
		}

		return consumption{}, false
	}

	return next, true
}

// reportNoAnswer tells now and then that the broker does not answer, until it is stopped.
func (s *session) reportNoAnswer() (stop func()) {
	over := make(chan struct{})
	go func() {
		warning := time.NewTicker(openTimeout)
		defer warning.Stop()
		for {
			select {
			case <-warning.C:
				s.sub.logger.Error("Cannot resume consuming yet", s.sub.consumer.noAnswer(s.queue.Name, openTimeout), nil)
			case <-over:
				return
			}
		}
	}()

	return sync.OnceFunc(func() { close(over) })
}

// handOut passes a delivery on to the workers.
func (s *session) handOut(d received) {
	s.handed.Add(1)
	s.ahead.push(d.at)
	select {
	case s.deliveries <- d:
	case <-s.stop:
		s.handed.Done()
		s.returned = append(s.returned, d)
	}
}

// handOutAlone passes a suspect on to the workers when nothing else is in flight, and waits until it is handled. It
// reports whether it is settled.
func (s *session) handOutAlone(d received) bool {
	redeliveries := codec.DeliveryCount(d.Headers)
	s.settled()
	if s.handed.isZero() {
		// else a handler does not return: nothing would be alone, so other topics need not wait for it
		give, ok := s.sub.consumer.settings.Turns.take(redeliveries, s.queue.Policy.CrashLimit, s.hasCrashed(&d), s.stop)
		if !ok {
			s.returned = append(s.returned, d)
			return false
		}
		defer give()
	}
	s.sub.logger.Debug("Handling this message alone: it may have crashed earlier consumers", watermill.LogFields{
		"message_id": d.MessageId, "redeliveries": redeliveries,
	})
	s.handOut(d)

	return s.settled()
}

// settled waits until all that was handed out is handled and settled, as far as the bounds allow, and reports whether
// it is. It does not wait for pauses: what is in one has been handled. Acknowledgements are written then: a process
// that dies next must not take them along.
func (s *session) settled() bool {
	handled := s.handed.within(aloneLimit, s.stop)
	copied := s.forwards.within(copyLimit, s.stop)
	s.acker.flush()

	return handled && copied && s.paused.isZero()
}

func (s *session) isStopped() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// end cancels the consumer, should it still be there, and collects what was delivered and not handed out.
func (s *session) end(c consumption) {
	if s.isGone() || c.deliveries == nil {
		return
	}
	_ = s.channel.Cancel(c.tag, false) // again, it may be: the broker answers all the same

	for d := range c.deliveries {
		s.returned = append(s.returned, *s.receive(d))
	}
	s.returned = append(s.returned, s.takeBack()...)
}

// takeBack is what was handed out and no worker has.
func (s *session) takeBack() (waiting []received) {
	for {
		select {
		case d := <-s.deliveries:
			s.ahead.pop()
			s.handed.Done()
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
