package chaos

// Settings of a worker.
type Settings struct {
	URI         string
	Version     Version
	Prefetch    int
	Concurrency int
}
