package retry

import "time"

// FailedAttempt is one failed attempt in a message's history.
type FailedAttempt struct {
	Number int       // of the handler call, over all lives of the message
	At     time.Time // UTC, milliseconds
	Error  string    // at most 256 bytes
	Type   string
	Reason Reason // how it failed where that is more than an error: panic, crashed, unpublishable, ...
}
