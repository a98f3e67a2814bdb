package dlq

import "time"

// Taken says, in the lines of an undo file, what has taken a message out of its dead-letter queue.
type Taken struct {
	By string // "replay", "move" or "purge"
	// To is the queue to which it was sent; empty if it was deleted.
	To string
	// Run of a replay.
	Run string
	// At is when that began, in whole seconds.
	At time.Time
}

// IsElsewhere tells whether the message was sent somewhere: what has become of it there, an import
// does not undo.
func (t Taken) IsElsewhere() bool { return t.To != "" }

func (e *encoder) taken(t Taken) {
	e.out = append(e.out, `,"taken":{"by":`...)
	e.text(t.By)
	e.property("to", t.To, "run", t.Run)
	e.member("at", t.At.UTC().Format(time.RFC3339))
	e.out = append(e.out, '}')
}

func readTaken(value any) (t Taken, err error) {
	err = readObject(value, []field{
		{"by", into(&t.By, readText)},
		{"to", into(&t.To, readText)},
		{"run", into(&t.Run, readText)},
		{"at", into(&t.At, readTime)},
	})

	return t, err
}
