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

// first is the prefetch to begin with: 1 where the first messages may be suspects, 0 while no worker could take one.
func (n *session) first(s *subscription) (prefetch int, careful bool) {
	careful = n.suspectsFrom != never
	if prefetch = n.sizes.start(s.pace); careful {
		prefetch = min(prefetch, 1)
	}

	return prefetch, careful
}

// consume begins to consume with this prefetch.
//
// Each consumer of a channel has a tag of its own: RabbitMQ 3.10 counts redeliveries wrong when one is used again while
// deliveries of the consumer before are not settled.
func (n *session) consume(s *subscription, prefetch int, careful bool) (consumption, error) {
	settings := s.consumer.settings

	if err := n.channel.Qos(prefetch, 0, false); err != nil {
		return consumption{}, err
	}
	n.consumed++
	tag := n.tag
	if n.consumed > 1 {
		tag = n.tagWith(strconv.Itoa(n.consumed))
	}
	n.acker.begin()
	s.active.now()
	deliveries, err := n.channel.Consume(s.queue.Name, tag, false, settings.Exclusive, settings.NoLocal,
		settings.NoWait, settings.Arguments)
	if err != nil {
		return consumption{}, err
	}

	return consumption{tag: tag, deliveries: deliveries, prefetch: prefetch, careful: careful,
		calls: s.pace.ended()}, nil
}

// tagWith is the tag with a suffix. A longer one than AMQP has room for would close the connection.
func (n *session) tagWith(suffix string) string {
	const most = 255

	return n.tag[:min(len(n.tag), most-1-len(suffix))] + "." + suffix
}

// take is the life of a session's consumers: it takes deliveries from the broker and passes them on to the workers,
// until the broker delivers no more or the subscription closes. What nobody is given then is in returned.
func (n *session) take(s *subscription, c consumption) {
	defer close(n.taken)
	defer close(n.deliveries)
	defer n.ticks.Stop()
	if n.suspectsFrom != never {
		defer s.consumer.settings.Turns.join()()
	}

	for going := true; going; {
		d, ok := n.next(c)
		switch {
		case !ok:
			going = false
		case d == nil:
			c, going = n.onTick(s, c)
		case !n.isSuspectNow(d, !c.careful):
			c.careful = false
			// Before it is handed out: its acknowledgement would make room for another.
			c, going = n.resize(s, c, n.grown(s, c))
			n.handOut(*d)
			if going {
				c, going = n.grow(s, c)
			}
		case c.prefetch == 1: // nothing comes beside it
			if c.careful = true; !n.handOutAlone(s, *d) {
				c, going = n.again(s, c, nil)
			}
		default:
			c, going = n.again(s, c, d)
		}
	}

	n.end(c)
}

// next waits for a delivery. It is false when there will be none, and nil at a tick.
func (n *session) next(c consumption) (*received, bool) {
	if d := n.came; d != nil {
		n.came = nil
		return d, true
	}
	select {
	case d, ok := <-c.deliveries:
		if !ok {
			return nil, false
		}
		n.active.now()

		return n.receive(d), true
	case <-n.ticks.C:
		n.isTicking = false
		return nil, true
	case <-n.stop:
		return nil, false
	}
}

func (n *session) receive(d amqp091.Delivery) *received {
	n.acker.arrived(d.DeliveryTag)
	n.keepTicking()

	return &received{d, time.Now()}
}

// again replaces the consumer by a careful one. suspect is the one that was delivered to it, if there is one: it is
// handed out alone. Others that come before the cancel are given back, or handed out one after the other.
func (n *session) again(s *subscription, c consumption, suspect *received) (consumption, bool) {
	stopped := func() (consumption, bool) {
		if suspect != nil {
			n.returned = append(n.returned, *suspect)
		}

		return c, false
	}
	if n.isStopped() {
		return stopped()
	}
	came, err := n.cancelled(c)
	if err != nil {
		n.returned = append(n.returned, came...)
		return stopped()
	}
	var others []received
	for _, delivery := range came {
		switch d := &delivery; {
		case !n.isSuspectNow(d, !c.careful):
			n.handOut(*d)
		case suspect == nil:
			suspect = d
		case n.mayGoBack(d):
			_ = n.acker.requeue(d.DeliveryTag) // with the channel it goes back as well
		default:
			others = append(others, *d)
		}
	}
	if n.isStopped() {
		n.returned = append(n.returned, others...)
		return stopped()
	}
	began := time.Now()
	settled := suspect == nil || n.handOutAlone(s, *suspect)
	for _, d := range others {
		switch {
		case n.isStopped():
			n.returned = append(n.returned, d)
		case settled && time.Since(began) < patience:
			settled = n.handOutAlone(s, d)
		default:
			_ = n.acker.requeue(d.DeliveryTag)
		}
	}

	// The broker counts the prefetch of each consumer by itself, and what the one before it has left unsettled is held
	// here.
	limit := func() int { return n.usual.most + n.paused.value() }
	if !n.acker.waitBelow(limit, n.stop) || n.isStopped() {
		return c, false
	}

	return n.goOn(s, 1, true)
}

// cancelled cancels a consumer, and gives what was delivered to it and not taken yet.
func (n *session) cancelled(c consumption) (came []received, err error) {
	err = n.acker.hold(func() error {
		came = n.gather(c, time.After(quietTime))
		return n.channel.Cancel(c.tag, false)
	})
	if err != nil {
		return came, err
	}
	for d := range c.deliveries {
		came = append(came, *n.receive(d))
	}

	return came, nil
}

// gather takes what comes until a consumer's prefetch is used up, while acknowledgements wait: the broker delivers
// again, and counts, what is on its way to a consumer of a quorum queue when that is cancelled. It does not take long:
// where messages come slowly, none is likely to be on its way. And it ends with a suspect. After a death these come in a
// row, and each would be given back, or charged with the next death.
func (n *session) gather(c consumption, over <-chan time.Time) (came []received) {
	for !n.acker.isFull(c.prefetch) {
		select {
		case d, ok := <-c.deliveries:
			if !ok {
				return came
			}
			came = append(came, *n.receive(d))
			if n.isSuspectNow(&came[len(came)-1], !c.careful) {
				return came
			}
		case <-over:
			return came
		case <-n.stop:
			return came
		}
	}

	return came
}

// quietTime is how long a prefetch takes to be used up where messages wait in the queue, with a broker that is slow.
const quietTime = 250 * time.Millisecond

// goOn consumes after the consumer before has been cancelled.
func (n *session) goOn(s *subscription, prefetch int, careful bool) (consumption, bool) {
	defer n.reportNoAnswer(s)()
	next, err := n.consume(s, prefetch, careful)
	if err != nil {
		if !n.isGone() {
			s.logger.Error("Cannot resume consuming", cannotConsume(s.queue.Name, err), nil)
			_ = n.channel.Close()
		}

		return consumption{}, false
	}

	return next, true
}

// reportNoAnswer tells now and then that the broker does not answer, until it is stopped.
func (n *session) reportNoAnswer(s *subscription) (stop func()) {
	over := make(chan struct{})
	go func() {
		warning := time.NewTicker(openTimeout)
		defer warning.Stop()
		for {
			select {
			case <-warning.C:
				s.logger.Error("Cannot resume consuming yet", s.consumer.noAnswer(s.queue.Name, openTimeout), nil)
			case <-over:
				return
			}
		}
	}()

	return sync.OnceFunc(func() { close(over) })
}

// handOut passes a delivery on to the workers.
func (n *session) handOut(d received) {
	n.handed.Add(1)
	n.ahead.push(d.at)
	select {
	case n.deliveries <- d:
	case <-n.stop:
		n.handed.Done()
		n.returned = append(n.returned, d)
	}
}

// handOutAlone passes a suspect on to the workers when nothing else is in flight, and waits until it is handled. It
// reports whether it is settled.
func (n *session) handOutAlone(s *subscription, d received) bool {
	redeliveries := codec.DeliveryCount(d.Headers)
	n.settled()
	if n.handed.isZero() {
		// else a handler does not return: nothing would be alone, so other topics need not wait for it
		give, ok := s.consumer.settings.Turns.take(redeliveries, s.queue.Policy.CrashLimit, n.hasCrashed(&d), n.stop)
		if !ok {
			n.returned = append(n.returned, d)
			return false
		}
		defer give()
	}
	s.logger.Debug("Handling this message alone: it may have crashed earlier consumers", watermill.LogFields{
		"message_id": d.MessageId, "redeliveries": redeliveries,
	})
	n.handOut(d)

	return n.settled()
}

// settled waits until all that was handed out is handled and settled, as far as the bounds allow, and reports whether
// it is. It does not wait for pauses: what is in one has been handled. Acknowledgements are written then: a process
// that dies next must not take them along.
func (n *session) settled() bool {
	handled := n.handed.within(aloneLimit, n.stop)
	copied := n.forwards.within(copyLimit, n.stop)
	n.acker.flush()

	return handled && copied && n.paused.isZero()
}

func (n *session) isStopped() bool {
	select {
	case <-n.stop:
		return true
	default:
		return false
	}
}

// end cancels the consumer, should it still be there, and collects what was delivered and not handed out.
func (n *session) end(c consumption) {
	if n.isGone() || c.deliveries == nil {
		return
	}
	_ = n.channel.Cancel(c.tag, false) // again, it may be: the broker answers all the same

	for d := range c.deliveries {
		n.returned = append(n.returned, *n.receive(d))
	}
	n.returned = append(n.returned, n.takeBack()...)
}

// takeBack is what was handed out and no worker has.
func (n *session) takeBack() (waiting []received) {
	for {
		select {
		case d := <-n.deliveries:
			n.ahead.pop()
			n.handed.Done()
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
