package retry

import "github.com/amqpretry/watermill-retry/internal/fingerprint"

// Cause is what the dead letter of a failed message tells of its last error, and would if this were
// its last attempt: bounded as its headers are, and with the text that Options.ErrorText makes.
type Cause struct {
	// Error is the text of the error, at most 2 KiB, and ErrorType its type. Handler is the name of
	// the handler that failed.
	Error     string
	ErrorType string
	Handler   string
	// Reason why the message is dead-lettered. Before that it is the reason that a dead letter has
	// when the retries run out.
	Reason Reason
}

// Fingerprint returns what failures with the same cause share, 12 hexadecimal digits: the ID of
// dlq.Fingerprint, by which amqpretry dlq list --fingerprint finds the dead letters. It is computed
// by each call, in some microseconds. It is empty for nil.
func (c *Cause) Fingerprint() string {
	if c == nil {
		return ""
	}
	id, _ := fingerprint.Of(c.ErrorType, c.Handler, c.Error, string(c.Reason))

	return id
}
