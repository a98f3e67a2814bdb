package retry

import (
	"strconv"
	"time"
)

// Action is what is to happen to a message.
type Action string

// The actions of a verdict.
const (
	ActionRetryNow   Action = "retry-now"   // be handled again at once, in this process
	ActionRetry      Action = "retry"       // wait for the delay, then come back to the queue that failed it
	ActionPostpone   Action = "postpone"    // the same, without having used up an attempt
	ActionDeadLetter Action = "dead-letter" // go to the dead-letter queue
	ActionDrop       Action = "drop"        // be acknowledged without a copy
	ActionRequeue    Action = "requeue"     // go back to its queue uncounted
)

// Verdict is the decision over one message.
type Verdict struct {
	// Action is what is done with the message.
	Action Action
	Count  int           // retry, postpone: failures so far, with this one if it is one
	Delay  time.Duration // retry, postpone: in which of the policy's delays it waits
	Wait   time.Duration // retry: how long, where jitter makes that shorter than the delay; else 0
	// ByBroker tells that the broker brings the message itself back, by the strategy of its policy.
	// The Delay is 0 if that is at once. Without it, a copy waits.
	ByBroker bool
	// NotBefore is when it may be handled again, where that is more than one delay away: until then
	// it is sent on to wait.
	NotBefore time.Time
	Reason    Reason // dead-letter: why; drop: expired, if that is why
}

func (v Verdict) String() string {
	// Without fmt: each failure has one, and fmt makes the stack of its goroutine grow.
	switch v.Action {
	case ActionRetry:
		again := "retry " + strconv.Itoa(v.Count)
		switch {
		case v.ByBroker && v.Delay == 0:
			return again + " at once, by the broker"
		case v.ByBroker:
			return again + " after " + v.Delay.String() + ", by the broker"
		}
		return again + " after " + v.Delay.String() + v.further()
	case ActionPostpone:
		return "postpone for " + v.Delay.String() + v.further()
	case ActionDeadLetter:
		return "dead-letter (" + string(v.Reason) + ")"
	case ActionDrop:
		if v.Reason != "" {
			return "drop (" + string(v.Reason) + ")"
		}
	case ActionRetryNow, ActionRequeue:
	}

	return string(v.Action)
}

// further says that the delay is not all of the wait.
func (v Verdict) further() string {
	if v.NotBefore.IsZero() {
		return ""
	}

	return " and longer"
}
