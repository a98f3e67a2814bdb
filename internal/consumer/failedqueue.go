package consumer

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// handleFailed is the way of one delivery in a failed queue. A consumer outside of this module has
// rejected it: it is judged as its handler's failure, and its copy goes to the retry queue or to
// the dead-letter queue of its main queue.
func (s *session) handleFailed(h *handout, arrived time.Time) {
	failed := codec.ReadFailed(&h.delivery, func(queue string) bool { return s.queue.main(queue) != nil })
	isUnsure := func() bool {
		return failed.Main == "" && s.queue.Unsure != nil && s.queue.Unsure(failed.Queue, arrived)
	}
	if !isUnsure() {
		s.judgeFailed(h, failed, arrived)
		return
	}

	s.paused.Go(func() {
		for isUnsure() {
			if !s.wait(unsurePause) {
				s.requeue(h) // which does nothing for a channel that is gone
				return
			}
		}
		s.judgeFailed(h, failed, arrived)
	})
}

// unsurePause is how long a message waits before its subscription asks again whether its queue is a
// main queue.
const unsurePause = 100 * time.Millisecond

func (s *session) judgeFailed(h *handout, failed codec.Failed, arrived time.Time) {
	d := &h.delivery
	h.queue = cmp.Or(s.queue.main(failed.Main), s.queue.FailedOf[0]) // nothing is lost: it has some dead-letter queue
	h.arrival = h.queue.arriveFailed(d, failed, arrived, s.sub.logger)
	h.Arrive(&h.queue.Policy, &h.arrival.State)
	h.nameless = isNameless(d)

	reason, err := h.queue.whyFailed(failed, s.queue.mains())
	if h.lost != "" { // what is left of it may mean something else
		reason, err = retry.ReasonUndecodable, codec.ExplainLostHeaders(h.lost)
	}
	s.carryOut(h, h.engine.Rejected(h, retry.Failure{
		Class: retry.ClassRejected, Err: err, Topic: h.queue.Topic, Message: unseen(h),
	}, reason))
}

// main is a main queue of a failed queue; nil if it is none.
func (q *Queue) main(name string) *Queue {
	i, found := slices.BinarySearchFunc(q.FailedOf, name, func(q *Queue, name string) int {
		return cmp.Compare(q.Topic, name)
	})
	if !found {
		return nil
	}

	return q.FailedOf[i]
}

// mains are the names of the main queues of a failed queue.
func (q *Queue) mains() []string {
	names := make([]string, len(q.FailedOf))
	for i, q := range q.FailedOf {
		names[i] = q.Topic
	}

	return names
}

// arriveFailed reads what a delivery carries of its earlier failures. Its headers count only if the
// broker says that it has waited in a retry queue of the main queue, or if it was replayed, which
// begins a new life.
func (q *Queue) arriveFailed(
	d *amqp091.Delivery, failed codec.Failed, now time.Time, logger watermill.LoggerAdapter,
) engine.Arrival {
	m := engine.Arriving{Expiration: d.Expiration, Timestamp: d.Timestamp}
	main := *q
	main.Name = q.Topic
	if wire.Carries(d.Headers, main.Name) {
		delay, _ := d.Headers[header.Delay].(string)
		for _, queue := range failed.Waited {
			if main.isRetryQueue(queue, delay) {
				m.Waited, m.IsRetryQueue = queue, main.isRetryQueue
			}
		}
		if m.Waited != "" || codec.IsReplay(d.Headers, main.Name) {
			m.Headers = d.Headers
		}
	}
	a := engine.Arrive(main.Name, &q.Policy, &m, now)
	q.complete(d, &a, logger)

	return a
}

// whyFailed is the reason for which a message of main queue s lies in its failed queue, and the
// error to be written on it. The failed queue is that of all mains.
func (q *Queue) whyFailed(failed codec.Failed, mains []string) (retry.Reason, error) {
	reason := wire.BrokerReason(failed.Reason)
	switch {
	case failed.Queue == "":
		return retry.ReasonPermanent, fmt.Errorf("the message was published to the failed queue %q and not "+
			"dead-lettered by a queue", q.Name)
	case failed.Main == "":
		return retry.ReasonPermanent, fmt.Errorf("the message in the failed queue %q was dead-lettered by queue %q "+
			"and not by %s", q.Name, wire.Text(failed.Queue, wire.MaxNameBytes), list(mains))
	case reason == "":
		return retry.ReasonPermanent, fmt.Errorf("queue %q dead-lettered the message for an unknown reason, %q",
			failed.Queue, wire.Text(failed.Reason, wire.MaxNameBytes))
	}
	if q.Missing != nil {
		if err := q.Missing(); err != nil {
			return retry.ReasonPermanent, fmt.Errorf("the message cannot return to its main queue: %w", err)
		}
	}

	return reason, &retry.RejectedError{Queue: failed.Queue, Reason: reason}
}

// list names main queues for a person to read, and not all of hundreds.
func list(mains []string) string {
	const most = 10
	if len(mains) == 1 {
		return fmt.Sprintf("its main queue %q", mains[0])
	}
	names := fmt.Sprintf("%q", mains[:min(len(mains), most)])
	if more := len(mains) - most; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}

	return "one of its main queues " + names
}

func isNameless(d *amqp091.Delivery) bool {
	uuid, _ := d.Headers[codec.UUIDHeader].(string)
	return uuid == ""
}
