package transport

import (
	"errors"
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
