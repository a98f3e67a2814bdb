package retry

import "fmt"

// RejectedError is the failure of a message that a consumer outside of this module has failed: its
// queue has dead-lettered it to a failed queue, and a processor retries it. The broker does not
// report the consumer's own error.
type RejectedError struct {
	// Queue has dead-lettered the message: its main queue, or another one that has given it that
	// queue's routing key.
	Queue string
	// Reason is the broker's: ReasonRejected, ReasonExpired, ReasonMaxLen or ReasonDeliveryLimit.
	Reason Reason
}

func (e *RejectedError) Error() string {
	switch e.Reason {
	case ReasonRejected:
		return fmt.Sprintf("rejected by a consumer of queue %q", e.Queue)
	case ReasonExpired:
		return fmt.Sprintf("the message expired in queue %q, before a consumer took it", e.Queue)
	case ReasonMaxLen:
		return fmt.Sprintf("the length limit of queue %q removed the message", e.Queue)
	case ReasonDeliveryLimit:
		return fmt.Sprintf("consumers of queue %q returned the message more often than its delivery limit allows",
			e.Queue)
	default:
		return fmt.Sprintf("dead-lettered by queue %q (%s)", e.Queue, e.Reason)
	}
}
