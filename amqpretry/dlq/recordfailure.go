package dlq

import (
	"time"

	"github.com/amqpretry/watermill-retry/retry"
)

// failureJSON summarizes the headers for people and for tools that select by it. An import ignores
// it.
type failureJSON struct {
	UUID string `json:"uuid,omitempty"`
	deadLetterJSON
	History []callJSON `json:"history,omitempty"`
	Edits   []Edit     `json:"edits,omitempty"`
}

// deadLetterJSON has the fields of retry.DeadLetter.
type deadLetterJSON struct {
	Reason       retry.Reason       `json:"reason,omitempty"`
	Error        string             `json:"error,omitempty"`
	ErrorType    string             `json:"error_type,omitempty"`
	Queue        string             `json:"queue,omitempty"`
	Topic        string             `json:"topic,omitempty"`
	Handler      string             `json:"handler,omitempty"`
	Host         string             `json:"host,omitempty"`
	Calls        int                `json:"calls"`
	Replays      int                `json:"replays"`
	FirstFailure time.Time          `json:"first_failure,omitzero"`
	LastFailure  time.Time          `json:"last_failure,omitzero"`
	History      []retry.FailedCall `json:"-"`
	Since        time.Time          `json:"since,omitzero"`
	Deadline     time.Time          `json:"deadline,omitzero"`
	Exchange     string             `json:"exchange,omitempty"`
	RoutingKey   string             `json:"routing_key,omitempty"`
	Expiration   string             `json:"expiration,omitempty"`
	UserID       string             `json:"user_id,omitempty"`
	Trace        string             `json:"trace,omitempty"`
	Removed      string             `json:"removed,omitempty"`
}

// callJSON has the fields of retry.FailedCall.
type callJSON struct {
	Number int          `json:"number"`
	At     time.Time    `json:"at,omitzero"`
	Error  string       `json:"error,omitempty"`
	Type   string       `json:"error_type,omitempty"`
	Reason retry.Reason `json:"reason,omitempty"`
}

func newFailureJSON(l *DeadLetter) failureJSON {
	failure := failureJSON{UUID: l.UUID, deadLetterJSON: deadLetterJSON(timed(l.DeadLetter)), Edits: l.Edits}
	for _, a := range failure.deadLetterJSON.History {
		failure.History = append(failure.History, callJSON(a))
	}

	return failure
}
