package topology

import (
	"fmt"
	"time"

	"github.com/amqpretry/watermill-retry/internal/shell"
)

// NoAnswerError reports a queue that the broker does not let us consume from: it takes the request and does not answer
// it.
type NoAnswerError struct {
	// Queue is the name of the queue.
	Queue string
	// VirtualHost of the queue.
	VirtualHost string
	For         time.Duration // how long it was waited for
}

func (e *NoAnswerError) Error() string {
	return fmt.Sprintf(
		"cannot consume from queue %q: no answer from the broker for %s, such as from a quorum queue without leader "+
			"(ask `rabbitmq-queues quorum_status%s %s`; bring the nodes up that have its members)", e.Queue, e.For,
		inVirtualHost(e.VirtualHost), shell.Quote(e.Queue),
	)
}

// inVirtualHost is the option of rabbitmqctl and its like, which look into / by themselves.
func inVirtualHost(name string) string {
	if name == "" {
		return ""
	}

	return " -p " + shell.Quote(name)
}
