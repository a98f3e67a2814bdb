package consumer

import (
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// When a process dies, the broker raises the x-delivery-count of every message that it had in flight, not only of the
// one that killed it. At the policy's crash limit a message counts as the killer, so its neighbours must not come that
// far. Two rules keep them from it:
//
//   - A consumer starts with prefetch 1 and goes on so while the messages that come are suspects: redelivered messages
//     whose count says that they may have killed a process, and those that have crashed their consumers in an earlier
//     attempt. The first other one opens it: its prefetch follows the handlers then.
//     The broker delivers returned messages before fresh ones, so after a death the suspects come first.
//   - A suspect that reaches an open consumer (a killer of another process, say) makes it cancel. What it has in flight
//     is finished, and the suspect is handled alone. Other suspects are given back, or handled alone as well. Then the
//     consumer starts with prefetch 1 again.
//
// Both hold for quorum queues only: classic queues do not count, so nothing is ever suspected there.

const (
	// aloneLimit is how long a suspect is alone: one whose handler never returns must not stop its queue.
	aloneLimit = 10 * time.Second
	// copyLimit is how long the copies of failed messages are waited for as well. While the broker confirms none, a
	// suspect must not stop its queue either.
	copyLimit = time.Second
)

// never suspects no message.
const never = 0

// suspectsFrom is the x-delivery-count from which on a message is a suspect.
//
// A message can have been delivered once before for harmless reasons: a graceful close, up to RabbitMQ 4.2, or one lost
// connection, and suspects are handled one at a time. So the limit is 2 where that leaves the neighbours of a killer far
// below the crash limit. RabbitMQ 3.x counts what an open consumer gives back, which takes the margin away.
func suspectsFrom(policy *config.Policy, version string) int64 {
	const enough = 7 // of a crash limit: neighbours were seen with a count of 6

	switch {
	case policy.Mode == config.ModeOff:
		return never // no crash limit
	case rabbitmq.AtLeast(version, 4, 0) && policy.CrashLimit >= enough:
		return 2
	default:
		return 1
	}
}

// isSuspect tells whether a message may have killed a process. One that was never delivered has its count from its
// publisher. One that has crashed its consumers in an earlier attempt is a suspect at once: its count begins anew with
// each attempt.
func (s *session) isSuspect(d *received) bool {
	if s.suspectsFrom == never {
		return false
	}

	return d.Redelivered && s.queue.deaths(&d.Delivery, s.broker.version) >= s.suspectsFrom || s.hasCrashed(d)
}

// mayGoBack tells whether a suspect may be given back to its queue while another one is handled. Here it would be charged
// with each death of this process. Where the broker counts what is given back, many instances that do so would bring it
// near the crash limit, too: there it is given back a few times.
func (s *session) mayGoBack(d *received) bool {
	return s.countsLeft || s.queue.deaths(&d.Delivery, s.broker.version) < int64(s.queue.Policy.CrashLimit)/3
}

func (s *session) hasCrashed(d *received) bool {
	return wire.Carries(d.Headers, s.queue.Name) && wire.HasCrashed(d.Headers)
}

// isSuspectNow tells whether a message is a suspect for a consumer that is open, or not. Where each failure is a return
// to the queue, all that have failed would be, and an open consumer would be careful all the time: there, only those of
// a consumer that has just started are. That is when a process may have died.
func (s *session) isSuspectNow(d *received, isOpen bool) bool {
	if isOpen && s.queue.Policy.CountsReturns() {
		return s.suspectsFrom != never && s.hasCrashed(d)
	}

	return s.isSuspect(d)
}
