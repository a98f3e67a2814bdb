package consumer

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// When a process dies, the broker raises the x-delivery-count of every message that it had in
// flight, not only of the one that killed it. At the policy's crash limit a message counts as the
// killer, so its neighbours must not come that far. Two rules keep them from it:
//
//   - A consumer starts with prefetch 1 and goes on so while the messages that come are suspects:
//     redelivered messages whose count says that they may have killed a process, and those that
//     have crashed their consumers in an earlier attempt. The first other one opens it: its
//     prefetch follows the handlers then. The broker delivers returned messages before fresh ones,
//     so after a death the suspects come first.
//   - A suspect that reaches an open consumer (a killer of another process, say) makes it cancel.
//     What it has in flight is finished, and the suspect is handled alone. Other suspects are given
//     back, or handled alone as well. Then the consumer starts with prefetch 1 again.
//
// Both hold for quorum queues only: classic queues do not count, so nothing is ever suspected
// there.

const (
	// aloneLimit is how long a suspect is alone: one whose handler never returns must not stop its
	// queue.
	aloneLimit = 10 * time.Second
	// copyLimit is how long the copies of failed messages are waited for as well. While the broker
	// confirms none, a suspect must not stop its queue either.
	copyLimit = time.Second
)

// never suspects no message.
const never = 0

// suspectsFrom is the x-delivery-count from which on a message is a suspect.
//
// A message can have been delivered once before for harmless reasons: a graceful close, up to
// RabbitMQ 4.2, or one lost connection, and suspects are handled one at a time. So the limit is 2
// where that leaves the neighbours of a killer far below the crash limit. RabbitMQ 3.x counts what
// an open consumer gives back, which takes the margin away.
func suspectsFrom(policy *config.Policy, version string) int64 {
	const enough = 7 // of a crash limit: neighbours were seen with a count of 6

	switch {
	case policy.Mode == config.ModeOff:
		return never // no crash limit
	case !rabbitmq.CountsGivenBack(version) && policy.CrashLimit >= enough:
		return 2
	default:
		return 1
	}
}

// isSuspect reports whether a message may have killed a process. One that was never delivered has
// its count from its publisher. One that has crashed its consumers in an earlier attempt is a
// suspect at once: its count begins anew with each attempt.
func (i *intake) isSuspect(d *received) bool {
	if i.suspectsFrom == never {
		return false
	}

	return d.Redelivered && i.queue.deaths(&d.Delivery, i.broker.version) >= i.suspectsFrom || i.hasCrashed(d)
}

// mayGoBack reports whether a suspect may be given back to its queue while another one is handled.
// Here it would be charged with each death of this process. Where the broker counts what is given
// back, many instances that do so would bring it near the crash limit, too: there it is given back
// a few times.
func (i *intake) mayGoBack(d *received) bool {
	return i.countsLeft || i.queue.deaths(&d.Delivery, i.broker.version) < int64(i.queue.Policy.CrashLimit)/3
}

func (i *intake) hasCrashed(d *received) bool {
	return wire.Carries(d.Headers, i.queue.Name) && wire.HasCrashed(d.Headers)
}

// isSuspectNow reports whether a message is a suspect for a consumer that is open, or not. Where
// each failure is a return to the queue, all that have failed would be, and an open consumer would
// be careful all the time: there, only those of a consumer that has just started are. That is when
// a process may have died.
func (i *intake) isSuspectNow(d *received, isOpen bool) bool {
	if isOpen && i.queue.Policy.Strategy.CountsReturns() {
		return i.suspectsFrom != never && i.hasCrashed(d)
	}

	return i.isSuspect(d)
}

// handOutAlone passes the suspect at hand on to the workers when nothing else is in flight, and
// waits until it is handled.
func (i *intake) handOutAlone() event {
	d := i.hand
	redeliveries := codec.DeliveryCount(d.Headers)
	i.settled()
	if i.handed.isZero() {
		// else a handler does not return: nothing would be alone, so other topics need not wait for
		// it
		give, ok := i.sub.consumer.settings.Turns.take(redeliveries, i.queue.Policy.CrashLimit, i.hasCrashed(d), i.stop)
		if !ok {
			return eventOver
		}
		defer give()
	}
	i.sub.logger.Debug("Handling this message alone: it may have crashed earlier consumers", watermill.LogFields{
		"message_id": d.MessageId, "redeliveries": redeliveries,
	})
	i.handOut()
	isSettled := i.settled()
	switch {
	case isClosed(i.stop):
		return eventOver
	case isSettled:
		return eventSettled
	default:
		return eventUnsettled
	}
}

// settled waits until all that was handed out is handled and settled, as far as the bounds allow,
// and reports whether it is. It does not wait for pauses: what is in one has been handled.
// Acknowledgements are written then: a process that dies next must not take them along.
func (i *intake) settled() bool {
	handled := i.handed.within(aloneLimit, i.stop)
	copied := i.forwards.within(copyLimit, i.stop)
	i.acker.flush()

	return handled && copied && i.paused.isZero()
}

// clear cancels the consumer for a suspect, which is the first in line, and sorts what comes before
// the cancel: other suspects go back to the queue, or are handed out one after the other.
func (i *intake) clear() event {
	if i.hand != nil {
		i.line, i.hand = append(i.line, *i.hand), nil
	}
	if isClosed(i.stop) {
		return eventOver
	}
	var came []received
	err := i.acker.hold(func() error {
		came = i.gather(time.After(quietTime))
		return i.channel.Cancel(i.consumer.tag, false)
	})
	if err != nil {
		i.line = append(i.line, came...)
		return eventOver
	}
	for _, d := range append(came, i.drain()...) {
		switch {
		case !i.isSuspectNow(&d, i.state == stateOpen):
			i.pass(d)
		case len(i.line) > 0 && i.mayGoBack(&d):
			_ = i.acker.requeue(d.DeliveryTag) // with the channel it goes back as well
		default:
			i.line = append(i.line, d)
		}
	}
	i.lineAt = time.Now()

	return eventNone
}

// gather takes what comes until a consumer's prefetch is used up, while acknowledgements wait: the
// broker delivers again, and counts, what is on its way to a consumer of a quorum queue when that
// is cancelled. It does not take long: where messages come slowly, none is likely to be on its way.
// And it ends with a suspect. After a death these come in a row, and each would be given back, or
// charged with the next death.
func (i *intake) gather(over <-chan time.Time) (came []received) {
	for !i.acker.isFull(i.consumer.prefetch) {
		select {
		case d, ok := <-i.consumer.deliveries:
			if !ok {
				return came
			}
			came = append(came, *i.receive(d))
			if i.isSuspectNow(&came[len(came)-1], i.state == stateOpen) {
				return came
			}
		case <-over:
			return came
		case <-i.stop:
			return came
		}
	}

	return came
}

// quietTime is how long a prefetch takes to be used up where messages wait in the queue, with a
// broker that is slow.
const quietTime = 250 * time.Millisecond

// nextInLine takes the next suspect out of the line. They are handed out one after the other for as
// long as others can wait.
func (i *intake) nextInLine() event {
	switch {
	case len(i.line) == 0:
		return eventNoLine
	case time.Since(i.lineAt) >= patience:
		return eventLate
	}
	i.hand, i.line = &i.line[0], i.line[1:]

	return eventSuspect
}

// requeueLine gives the line back, where its suspects cannot be alone, or others have waited long
// for them.
func (i *intake) requeueLine() event {
	for _, d := range i.line {
		_ = i.acker.requeue(d.DeliveryTag) // with the channel it goes back as well
	}
	i.line = nil

	return eventNone
}

// awaitRoom waits until few enough deliveries are unsettled for another consumer. The broker counts
// the prefetch of each consumer by itself, and what the one before it has left unsettled is held
// here.
func (i *intake) awaitRoom() event {
	limit := func() int { return i.usual.most + i.paused.value() }
	if !i.acker.waitBelow(limit, i.stop) || isClosed(i.stop) {
		return eventOver
	}

	return eventNone
}
