package consumer

import (
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
)

// consumption is one basic.consume of a session.
type consumption struct {
	tag        string
	deliveries <-chan amqp091.Delivery
	prefetch   int
}

// received is a delivery with the time of its arrival: it may be handed out much later, behind others that were
// delivered ahead of it.
type received struct {
	amqp091.Delivery
	at       time.Time
	consumer int // of the session
}

// consume begins to consume with this prefetch.
//
// Each consumer of a channel has a tag of its own: RabbitMQ 3.10 counts redeliveries wrong when one is used again while
// deliveries of the consumer before are not settled.
func (n *session) consume(s *subscription, prefetch int) (consumption, error) {
	settings := s.consumer.settings

	if err := n.channel.Qos(prefetch, 0, false); err != nil {
		return consumption{}, err
	}
	n.consumed++
	tag := n.tag
	if n.consumed > 1 {
		tag = n.tagWith(strconv.Itoa(n.consumed))
	}
	deliveries, err := n.channel.Consume(s.queue.Name, tag, false, settings.Exclusive, settings.NoLocal,
		settings.NoWait, settings.Arguments)
	if err != nil {
		return consumption{}, err
	}

	n.crowd.begin(n.consumed)

	return consumption{tag, deliveries, prefetch}, nil
}

// tagWith is the tag with a suffix. A longer one than AMQP has room for would close the connection.
func (n *session) tagWith(suffix string) string {
	const most = 255

	return n.tag[:min(len(n.tag), most-1-len(suffix))] + "." + suffix
}

// firstPrefetch is that of a session's first consumer.
func (n *session) firstPrefetch(s *subscription) int {
	if n.suspectsFrom == never {
		return s.consumer.settings.Prefetch
	}

	return 1
}

// take is the life of a session's consumers: it takes deliveries from the broker and passes them on to the workers,
// until the broker delivers no more or the subscription closes. What nobody is given then is in returned.
func (n *session) take(s *subscription, c consumption) {
	defer close(n.taken)
	defer close(n.deliveries)
	if n.suspectsFrom != never {
		defer s.consumer.settings.Turns.join()()
	}
	full := s.consumer.settings.Prefetch

	for going := true; going; {
		d, ok := n.next(c)
		switch {
		case !ok:
			going = false
		case d == nil:
			c, going = n.again(s, c, nil, full)
		case n.isSuspectNow(d, false) && c.prefetch == 1:
			if !n.handOutAlone(s, *d) {
				c, going = n.again(s, c, nil, 1)
			}
		case n.isSuspectNow(d, true):
			c, going = n.again(s, c, d, 1)
		default:
			if c.prefetch < full {
				// Before it is handed out: else its acknowledgement lets the broker deliver another to the consumer that is
				// being cancelled. The broker takes that one back, and it comes marked as redelivered; before RabbitMQ 4.3
				// that is counted, too.
				c, going = n.again(s, c, nil, full)
			}
			n.handOut(*d)
		}
	}

	n.end(c)
}

// next waits for a delivery. It is false when there will be none, and nil when another consumer is needed.
func (n *session) next(c consumption) (*received, bool) {
	select {
	case d, ok := <-c.deliveries:
		if !ok {
			return nil, false
		}

		return n.receive(d), true
	case <-n.crowd.full:
		return nil, true
	case <-n.stop:
		return nil, false
	}
}

func (n *session) receive(d amqp091.Delivery) *received {
	n.acker.arrived()

	return &received{d, time.Now(), n.consumed}
}

// again replaces the consumer by one with another prefetch. suspect is the one that was delivered to it, if there is
// one: it is handed out alone, and others that come before the cancel are given back.
func (n *session) again(s *subscription, c consumption, suspect *received, prefetch int) (consumption, bool) {
	stopped := func() (consumption, bool) {
		if suspect != nil {
			n.returned = append(n.returned, *suspect)
		}

		return c, false
	}
	if n.isStopped() || n.channel.Cancel(c.tag, false) != nil {
		return stopped()
	}
	for delivery := range c.deliveries {
		switch d := n.receive(delivery); {
		case !n.isSuspectNow(d, c.prefetch > 1):
			n.handOut(*d)
		case suspect == nil:
			suspect = d
		default:
			_ = n.acker.requeue(d.DeliveryTag) // with the channel it goes back as well
		}
	}
	if n.isStopped() {
		return stopped()
	}
	if suspect != nil {
		prefetch = 1
		n.handOutAlone(s, *suspect)
	}

	// The broker counts the prefetch of each consumer by itself, and what the one before it has left unsettled is held
	// here.
	limit := func() int { return s.consumer.settings.Prefetch + n.crowd.waiting() }
	if !n.acker.waitBelow(limit, n.stop) || n.isStopped() {
		return c, false
	}
	defer n.reportNoAnswer(s)()
	next, err := n.consume(s, prefetch)
	if err != nil {
		if !n.isGone() {
			s.logger.Error("Cannot continue to consume", cannotConsume(s.queue.Name, err), nil)
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
				s.logger.Error("Cannot continue to consume yet", s.consumer.noAnswer(s.queue.Name, openTimeout), nil)
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
	s.logger.Debug("Message is handled alone: it may be what its consumers died of", watermill.LogFields{
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
	for {
		select {
		case d := <-n.deliveries:
			n.handed.Done()
			n.returned = append(n.returned, d)
		default:
			return
		}
	}
}
