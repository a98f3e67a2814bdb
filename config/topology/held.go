package topology

import (
	"errors"
	"fmt"
	"time"
)

// HeldError reports deliveries whose copy the broker does not confirm: they are held unacknowledged and their handlers
// are not run again, until the broker confirms, their channel is gone, or the retrier is closed.
type HeldError struct {
	Queue string // the main queue
	// VirtualHost of the queue.
	VirtualHost string
	Exchange    string        // where the copy that this reports is to go; empty for the default exchange
	Held        int           // how many of this queue are waiting
	For         time.Duration // how long the one that this reports has been waiting
	Err         error         // the last thing that went wrong; nil when the broker just does not answer
}

func (e *HeldError) Error() string {
	cause := "the broker does not answer"
	if e.Err != nil {
		cause = e.Err.Error()
	}

	exchange := fmt.Sprintf("exchange %q", e.Exchange)
	if e.Exchange == "" {
		exchange = "the default exchange" // with a dead letter, under shared retry queues
	}

	hint := " (look for an alarm, a deleted or leaderless retry queue or dead-letter queue (`rabbitmqctl " +
		"list_unresponsive_queues" +
		inVirtualHost(e.VirtualHost) + "`), or missing permissions)"
	if errors.As(e.Err, new(*ChannelsError)) {
		hint = "" // it is not the exchange
	}

	return fmt.Sprintf(
		"%d failed deliveries of queue %q are held, one for %s: %s does not take their copies: %s%s",
		e.Held, e.Queue, e.For.Round(time.Millisecond), exchange, cause, hint,
	)
}

// Unwrap gives the last thing that went wrong.
func (e *HeldError) Unwrap() error { return e.Err }
