package topology

// Mode says who declares the queues and exchanges of a service.
type Mode string

const (
	// Declare declares the main queue, as the config's own builder does, and the retry topology of its policy.
	Declare Mode = "declare"
	// Assume declares nothing at all: somebody else has provisioned the main queues and the retry topology.
	Assume Mode = "assume"
)
