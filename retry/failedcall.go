package retry

import "time"

// FailedCall is one failed call of a handler, in a message's history.
type FailedCall struct {
	Number int       // counts the calls over all lives of the message, 1 for the first
	At     time.Time // UTC, milliseconds
	Error  string    // at most 256 bytes
	Type   string
	Reason Reason // how it failed where that is more than an error: panic, crashed, unpublishable, ...
}
