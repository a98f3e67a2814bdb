package transport

import (
	"errors"
	"fmt"
	"time"

	"github.com/amqpretry/watermill-retry/internal/shell"
)

var (
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("closed")

	// errGone means that the broker has taken the delivery back: its channel is closed, it will be delivered again.
	errGone = errors.New("the delivery's channel is gone, the broker will deliver the message again")

	errSettled = errors.New("the message was already acknowledged or rejected, its failure cannot be acted on: " +
		"is a middleware such as InstantAck outside of the retry middleware?")

	errRequeued = errors.New("the handler has nacked the message by itself, and the stock subscriber has requeued it at once")

	errUnpublishable = errors.New("the handler succeeded, but its outputs could not be published")
)

// NoAnswerError reports a queue that the broker does not let us consume from: it takes the request and does not answer it.
type NoAnswerError struct {
	Queue string
	// VirtualHost of the queue.
	VirtualHost string
	For         time.Duration // how long it was waited for
}

func (e *NoAnswerError) Error() string {
	return fmt.Sprintf(
		"cannot consume from queue %q: no answer from the broker for %s, such as from a quorum queue without leader "+
			"(ask `rabbitmq-queues quorum_status%s %s`; bring the nodes up that have its members)", e.Queue, e.For, inVirtualHost(e.VirtualHost), shell.Quote(e.Queue),
	)
}

// inVirtualHost is the option of rabbitmqctl and its like, which look into / by themselves.
func inVirtualHost(name string) string {
	if name == "" {
		return ""
	}

	return " -p " + shell.Quote(name)
}

// HeldError reports deliveries whose copy the broker does not confirm: they are held unacknowledged and their handlers are not
// run again, until the broker confirms, their channel is gone, or the plug is closed.
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

	hint := " (look for an alarm, a deleted or leaderless retry queue or dead-letter queue (`rabbitmqctl list_unresponsive_queues" +
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
