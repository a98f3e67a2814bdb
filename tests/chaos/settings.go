package chaos

import "time"

// Settings of a worker.
type Settings struct {
	URI         string
	Version     Version
	Broker      string // version of RabbitMQ
	Prefetch    int
	Concurrency int
	Longest     time.Duration // that a handler asks a message to wait, see [Asked]
}
