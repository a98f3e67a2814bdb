package retry

import "time"

// QueueRole says what a queue beside a main queue is for.
type QueueRole string

// The roles of queues beside a main queue.
const (
	QueueRoleRetry      QueueRole = "retry"
	QueueRoleDeadLetter QueueRole = "dead-letter"
	// QueueRoleDelay is a queue in which messages with exact delays wait. All main queues share it.
	QueueRoleDelay QueueRole = "delay"
	// QueueRoleUnroutable is the queue of delayed messages that no target takes.
	QueueRoleUnroutable QueueRole = "unroutable"
	// QueueRoleFailed is a failed queue, into which the consumers of other languages reject. A
	// processor drains it.
	QueueRoleFailed QueueRole = "failed"
)

// QueueDepth is the number of ready messages in a retry queue, a dead-letter queue or a shared
// queue. A 0 does not prove that a queue is empty. AMQP does not count messages that a consumer has
// not acknowledged, messages that a retry queue is dead-lettering at least once, and messages that
// RabbitMQ 4.4 or later holds back until their x-opt-delivery-time. Landing queues are left out, as
// their messages are never ready; the management API counts them.
type QueueDepth struct {
	// Queue is the name of the queue.
	Queue string
	// Role tells what the queue is for.
	Role QueueRole
	// MainQueue that it belongs to; empty for queues that main queues share.
	MainQueue string
	Messages  int
	// Wait is how long the messages in the queue wait at most until they go to their main queues,
	// if nothing is down or full; 0 where they do not wait for a time.
	Wait time.Duration
}
