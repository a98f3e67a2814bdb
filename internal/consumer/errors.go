package consumer

import (
	"errors"
)

var (
	errSettled = errors.New("the message was already acknowledged or rejected, its failure cannot be acted on: " +
		"is a middleware such as InstantAck outside of the retry middleware?")

	errRequeued = errors.New("the handler has nacked the message by itself, and the stock subscriber has requeued it at once")

	errUnpublishable = errors.New("the handler succeeded, but its outputs could not be published")
)
