package retrytest

// Fault is what happens to a service in the middle of a call of its handler.
type Fault string

// The faults.
const (
	// Shutdown takes the message away from its handler: its context ends before the call, and
	// whatever it returns, the message goes back to its queue, uncounted, and is delivered again.
	Shutdown Fault = "shutdown"
	// Crash ends the process when the handler has run, before anybody learns of it: the message is
	// delivered again, and the broker counts that. The process forgets its memory, such as
	// immediate calls.
	Crash Fault = "crash"
	// Unpublishable refuses the outputs of this call. A call without outputs has none that could be
	// refused.
	Unpublishable Fault = "unpublishable"
)

// EveryCall is the key in [Service.Faults] of all calls that are not listed.
const EveryCall = 0
