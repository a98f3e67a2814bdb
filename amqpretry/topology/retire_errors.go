package topology

import "fmt"

// InUseError says that somebody still uses a retry queue that was to be retired. It was not deleted and has lost
// nothing.
type InUseError struct {
	// Queue that was to be retired.
	Queue string
	// Found is what shows the use.
	Found string
	// Do is what to do about it.
	Do string
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("retry queue %q is still in use, and was not deleted: %s; %s", e.Queue, e.Found, e.Do)
}

// NotEmptyError says that a retry queue was not found to be empty in time. It was not deleted and has lost nothing:
// what waits in it still comes back. It may be unbound by now, which an instance that still needs it undoes by itself.
type NotEmptyError struct {
	// Queue that was to be retired.
	Queue string
	// Messages in it, as the management API last said; -1 when it did not say.
	Messages int64
	// Undeliverable are those of them that are dead-lettered but that the main queue has not taken: AMQP shows none of
	// them.
	Undeliverable int64
	// Found in words.
	Found string
	// Do is what to do about it.
	Do string
	// Err is what ended the waiting, such as context.DeadlineExceeded.
	Err error
}

func (e *NotEmptyError) Error() string {
	text := fmt.Sprintf("retry queue %q was not deleted: %s; %s", e.Queue, e.Found, e.Do)
	if e.Err != nil {
		text += fmt.Sprintf(" (%v)", e.Err)
	}
	return text
}

func (e *NotEmptyError) Unwrap() error { return e.Err }
