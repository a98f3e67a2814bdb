package consumer

import (
	"errors"
)

var (
	errRequeued = errors.New("the handler nacked the message, and the stock subscriber requeued it at once")
)
