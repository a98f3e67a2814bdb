package topology

import (
	"fmt"
)

// ProtectionError is returned by Subscribe when a main queue exists without the arguments of
// config.ProtectionArguments, which the broker cannot add to it. Unwrap reaches the *ConflictError.
type ProtectionError struct {
	// Queue is the name of the queue.
	Queue string
	// Policy of the broker that does the same for the queue as it is.
	Policy BrokerPolicy
	Err    *ConflictError
}

func (e *ProtectionError) Error() string {
	differs := "other arguments"
	if e.Err.Argument != "" {
		differs = "another " + e.Err.Argument
	}
	if e.Err.Found != "" {
		differs += fmt.Sprintf(" (wanted %s, found %s)", e.Err.Wanted, e.Err.Found)
	}

	// Which argument the broker names does not tell whether the queue is a classic one.
	return fmt.Sprintf("queue %q exists with %s than config.ProtectionArguments declares, and the broker cannot "+
		"change them; ways out: if it is a quorum queue, config.ProtectionPolicy, with Config.Queue.Arguments as the "+
		"queue has them, after an operator has run the line below (a dead-letter exchange among the queue's "+
		"arguments would win over the policy's); if it is a classic queue, which has no delivery limit, "+
		"config.ProtectionNone; or delete it once it is empty (it is declared again)\n%s",
		e.Queue, differs, e.Policy)
}

func (e *ProtectionError) Unwrap() error { return e.Err }
