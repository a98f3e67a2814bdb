package consumer

import (
	"errors"
)

var (
	errRequeued = errors.New("the handler has nacked the message itself, and the stock subscriber has requeued it at " +
		"once")
)
