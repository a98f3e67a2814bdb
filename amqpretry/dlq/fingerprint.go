package dlq

import "github.com/amqpretry/watermill-retry/internal/fingerprint"

// Fingerprint is what dead letters with the same cause share: the type of their error, its text
// without what differs from one message to the next, and the handler. It is computed from the dead
// letter, and in no header. The events of a failure have the same ID: see retry.Cause.
type Fingerprint struct {
	// ID stands for the other fields: 12 hexadecimal digits.
	ID string `json:"id"`
	// ErrorType and Handler are those of the dead letter; empty if it does not tell.
	ErrorType string `json:"error_type"`
	Handler   string `json:"handler"`
	// Pattern is the text of the error with placeholders: <n> for a number, <uuid>, <hex>, <id> for
	// a longer mix of letters and digits, and "…" for what is quoted. At most 500 bytes. Where
	// there is no error text it is the reason.
	Pattern string `json:"pattern"`
}

// Fingerprint is that of the dead letter.
func (l *DeadLetter) Fingerprint() Fingerprint {
	id, pattern := fingerprint.Of(l.ErrorType, l.Handler, l.Error, string(l.Reason))

	return Fingerprint{ID: id, ErrorType: l.ErrorType, Handler: l.Handler, Pattern: pattern}
}
