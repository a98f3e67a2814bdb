package dlq

import (
	"fmt"
	"strconv"
)

// NotFoundError says that there is no dead letter with this UUID among those that could be seen.
type NotFoundError struct {
	// Queue is the name of the queue.
	Queue, UUID string
	// Seen is how many there were.
	Seen int
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("dead-letter queue %q: no message with the UUID %q among the %d that could be seen", e.Queue,
		e.UUID, e.Seen)
}

// NoQueueError says that a queue is not there.
type NoQueueError struct {
	// Queue is the name of the queue.
	Queue string
	// The part that it has in the run is the text What: dead-letter queue or target.
	What string
	Err  error
}

func (e *NoQueueError) Error() string {
	return fmt.Sprintf("%s %q: there is no such queue; check the name and the virtual host", e.What, e.Queue)
}

func (e *NoQueueError) Unwrap() error { return e.Err }

// IncompleteError says that messages of a dead-letter queue could not be seen that were there when
// a browse or a run began: somebody else has taken them, or they have expired. The report tells
// what was done about the others.
type IncompleteError struct {
	// Queue is the name of the queue.
	Queue string
	// Total is how many there were, Missing how many of them could not be seen.
	Total, Missing int
}

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("dead-letter queue %q: of %d messages, %d were not visible: another consumer takes them, or "+
		"they expire. All visible messages were processed",
		e.Queue, e.Total, e.Missing)
}

// OrderError says that a browse or a run was interrupted where it could not end in order: messages
// that it has passed are now behind others that are younger. A quorum queue puts what it gets back
// behind what it got back before; see Config.OrderTime. Nothing is lost.
type OrderError struct {
	// Queue is the name of the queue.
	Queue string
	// Left is how many messages there were to pass at the most.
	Left int
}

func (e *OrderError) Error() string {
	return fmt.Sprintf("dead-letter queue %q: the order of its messages has changed, because returning them was "+
		"interrupted up to %d messages before the end. No message is lost, but the oldest may not be the first",
		e.Queue, e.Left)
}

// BusyError says that another run, or another browse, is at work on the same dead-letter queue.
type BusyError struct {
	// Queue is the name of the queue.
	Queue string
	// Lock is the exclusive queue that the other run holds as long as it is connected.
	Lock string
	Err  error
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("dead-letter queue %q: another replay, move, purge or browse is at work (it holds the "+
		"exclusive queue %q): wait for it, or end it; what it has not done stays where it is", e.Queue, e.Lock)
}

func (e *BusyError) Unwrap() error { return e.Err }

// UnsafeError says that browsing a queue could lose messages, so it was not read.
type UnsafeError struct {
	// Queue is the name of the queue.
	Queue string
	// Found is why, Do the ways out.
	Found, Do string
	Err       error
}

func (e *UnsafeError) Error() string {
	return fmt.Sprintf("dead-letter queue %q: browsing it could lose messages: %s; %s", e.Queue, e.Found, e.Do)
}

func (e *UnsafeError) Unwrap() error { return e.Err }

// LineError is a line of an export that cannot be imported.
type LineError struct {
	// Line counts from 1.
	Line int
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

func (e *LineError) Unwrap() error { return e.Err }

func itoa(n int) string { return strconv.Itoa(n) }

func ftoa(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

func quoted(text string) string { return strconv.Quote(text) }
