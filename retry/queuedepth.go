package retry

// QueueRole says what a queue beside a main queue is for.
type QueueRole string

// The roles of queues beside a main queue.
const (
	QueueRoleRetry      QueueRole = "retry"
	QueueRoleDeadLetter QueueRole = "dead-letter"
)

// QueueDepth is how many messages lie ready in a queue beside a main queue. A message that a retry queue has handed
// back but not delivered yet (its dead-lettering is at least once) is in no count that AMQP shows, and one that a
// consumer has not acknowledged neither. Nor is one that RabbitMQ 4.4 or later holds back until its
// x-opt-delivery-time: a 0 does not prove that a queue is empty.
type QueueDepth struct {
	// Queue is the name of the queue.
	Queue string
	// Role tells what the queue is for.
	Role QueueRole
	// MainQueue that it belongs to; empty for retry queues that main queues share.
	MainQueue string
	Messages  int
}
