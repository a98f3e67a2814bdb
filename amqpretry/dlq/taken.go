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

// IsElsewhere tells whether the message was sent somewhere: what has become of it there, an import does not undo.
func (t Taken) IsElsewhere() bool { return t.To != "" }

var takenFields = []string{"by", "to", "run", "at"}

func appendTaken(out []byte, t Taken) []byte {
	out = append(appendKey(out, "taken"), '{')
	out = appendString(appendKey(out, "by"), t.By)
	out = textField(out, "to", t.To)
	out = textField(out, "run", t.Run)
	out = appendString(appendKey(out, "at"), t.At.UTC().Format(time.RFC3339))

	return append(out, '}')
}

func (r *jsonReader) taken() (t Taken, err error) {
	err = r.fields(takenFields, func(name string) (err error) {
		switch name {
		case "by":
			t.By, err = r.string()
		case "to":
			t.To, err = r.string()
		case "run":
			t.Run, err = r.string()
		case "at":
			t.At, err = r.time()
		}

		return err
	})

	return t, err
}
