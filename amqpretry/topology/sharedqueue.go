package topology

import (
	"fmt"
)

// SharedQueueError is returned by Subscribe when two topics share a queue under different policies: a message does not
// say for which topic it is in the queue, so only one policy can hold.
type SharedQueueError struct {
	// Queue is the name of the queue.
	Queue string
	// Topics are those that share it.
	Topics [2]string
}

func (e *SharedQueueError) Error() string {
	return fmt.Sprintf(
		"topics %q and %q share queue %q under different policies: give both the same policy, or each its own queue "+
			"(Config.Queue.GenerateName)",
		e.Topics[0], e.Topics[1], e.Queue,
	)
}
