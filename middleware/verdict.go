package middleware

import (
	"fmt"
	"time"

	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Action is what is to happen to a message.
type Action string

// The actions of a verdict.
const (
	ActionRetry      Action = "retry"       // wait for the delay, then come back to the queue that failed it
	ActionDeadLetter Action = "dead-letter" // go to the dead-letter queue
	ActionDrop       Action = "drop"        // be acknowledged without a copy
	ActionRequeue    Action = "requeue"     // go back to its queue uncounted
)

// Reason says why a message was dead-lettered. The list is closed.
type Reason = wire.Reason

// The reasons of dead letters.
const (
	ReasonExhausted        = wire.ReasonExhausted
	ReasonPermanent        = wire.ReasonPermanent
	ReasonExpired          = wire.ReasonExpired
	ReasonUndecodable      = wire.ReasonUndecodable
	ReasonPanic            = wire.ReasonPanic
	ReasonCrashed          = wire.ReasonCrashed
	ReasonUnpublishable    = wire.ReasonUnpublishable
	ReasonRejected         = wire.ReasonRejected
	ReasonDeliveryLimit    = wire.ReasonDeliveryLimit
	ReasonMaxLen           = wire.ReasonMaxLen
	ReasonTooLarge         = wire.ReasonTooLarge
	ReasonPostponedTooLong = wire.ReasonPostponedTooLong
)

// Verdict is the decision over one message.
type Verdict struct {
	Action Action
	Count  int           // retry: failures so far, this one included
	Delay  time.Duration // retry: how long it waits
	Reason Reason        // dead-letter: why
}

func (v Verdict) String() string {
	switch v.Action {
	case ActionRetry:
		return fmt.Sprintf("retry %d after %s", v.Count, v.Delay)
	case ActionDeadLetter:
		return fmt.Sprintf("dead-letter (%s)", v.Reason)
	case ActionDrop, ActionRequeue:
	}

	return string(v.Action)
}
