// Package publishtest reads an error of Publish as its caller does: what became of each message.
package publishtest

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config/publish"
)

// Outcome of a message, as Publish told it.
type Outcome int

// The outcomes.
const (
	Stored Outcome = iota
	NotStored
	MayBeStored
)

// Outcomes returns the outcome of each message of a call, by UUID.
func Outcomes(messages []*message.Message, err error) map[string]Outcome {
	outcomes := map[string]Outcome{}
	var failed *publish.Error
	isList := errors.As(err, &failed)
	for _, msg := range messages {
		outcomes[msg.UUID] = Stored
		if err != nil && !isList {
			outcomes[msg.UUID] = NotStored
		}
	}
	if !isList {
		return outcomes
	}
	for _, f := range failed.Failed {
		outcomes[f.UUID] = NotStored
		if f.MayBeStored {
			outcomes[f.UUID] = MayBeStored
		}
	}

	return outcomes
}
