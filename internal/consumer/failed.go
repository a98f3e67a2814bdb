package consumer

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// handleFailed is the way of one delivery in a failed queue. A consumer outside of this module has rejected it: it is
// judged as its handler's failure, and its copy goes to the retry queue or to the dead-letter queue of the main queue.
func (n *session) handleFailed(s *subscription, h *inFlight, arrived time.Time) {
	d, main := &h.delivery, s.queue.FailedOf

	failed := codec.ReadFailed(d, main)
	h.arrival = s.queue.arriveFailed(d, failed, arrived, s.logger)
	h.Arrive(&s.queue.Policy, &h.arrival.State)
	h.nameless = isNameless(d)

	reason, err := whyFailed(s.queue.Name, main, failed)
	if h.lost != "" { // what is left of it may mean something else
		reason, err = retry.ReasonUndecodable, codec.ExplainLostHeaders(h.lost)
	}
	n.carryOut(s, h, s.consumer.settings.Engine.Rejected(h, retry.Failure{
		Class: retry.ClassRejected, Err: err, Topic: s.queue.Topic, Message: unseen(h),
	}, reason))
}

// arriveFailed reads what a delivery carries of its earlier failures. Its headers count only if the broker says that it
// has waited in a retry queue of the main queue, or if it was replayed, which begins a new life.
func (s *Queue) arriveFailed(
	d *amqp091.Delivery, failed codec.Failed, now time.Time, logger watermill.LoggerAdapter,
) engine.Arrival {
	m := engine.Arriving{Expiration: d.Expiration, Timestamp: d.Timestamp}
	main := *s
	main.Name = s.FailedOf
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
	a := engine.Arrive(main.Name, &s.Policy, &m, now)
	d.Priority = max(d.Priority, a.State.Arrival.Priority)
	if a.Unknown {
		logger.Info("Message carries retry headers of an unknown version, it is treated as fresh", watermill.LogFields{
			"amqp_queue_name": s.Name, "version": codec.HeaderText(d.Headers[header.Version]),
		})
	}

	return a
}

// whyFailed is the reason for which a message lies in a failed queue, and the error to be written on it.
func whyFailed(queue, main string, failed codec.Failed) (retry.Reason, error) {
	reason := wire.BrokerReason(failed.Reason)
	switch {
	case failed.Queue == "":
		return retry.ReasonPermanent, fmt.Errorf("the message was published to the failed queue %q: no queue has "+
			"dead-lettered it", queue)
	case failed.Queue != main:
		return retry.ReasonPermanent, fmt.Errorf("the message in the failed queue %q was dead-lettered by queue %q "+
			"and not by its main queue %q", queue, failed.Queue, main)
	case reason == "":
		return retry.ReasonPermanent, fmt.Errorf("queue %q dead-lettered the message for an unknown reason, %q", main,
			wire.Text(failed.Reason, wire.MaxNameBytes))
	}

	return reason, &retry.RejectedError{Queue: main, Reason: reason}
}

func isNameless(d *amqp091.Delivery) bool {
	uuid, _ := d.Headers[codec.UUIDHeader].(string)
	return uuid == ""
}
